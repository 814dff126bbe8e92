"""Servers without sockets: what the client must cope with, at exactly the token where a test wants it."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from brains import STOP, hashed
from safetensors.torch import load_file

from turnwise.engines.local import LocalEngine
from turnwise.engines.servers import Piece, ServerFailure
from turnwise.types import Sampling


@dataclass
class Direct:
    """A server in this process. `before` is awaited before each token: there it may fail, hang, or be paused."""

    name: str
    before: Callable[["Direct", int], object] = lambda server, place: None
    weight: float = 0.0
    alive: bool = True
    refuses: str = ""  # weights, with these words
    prompts: list[tuple[int, ...]] = field(default_factory=list)
    samplings: list[Sampling] = field(default_factory=list)
    loads: list[int] = field(default_factory=list)
    closed: bool = False
    stopped: int = 0  # replies that nobody read to the end

    async def stream(self, prompt_ids: Sequence[int], sampling: Sampling, version: int) -> AsyncGenerator[Piece, None]:
        self.prompts.append(tuple(prompt_ids))
        self.samplings.append(sampling)
        ids = list(prompt_ids)
        try:
            for place in range(sampling.max_tokens):
                waiting = self.before(self, place)
                if asyncio.iscoroutine(waiting):
                    await waiting
                if not self.alive:
                    raise ServerFailure(f"{self.name} is gone", gone=True)
                token, logprob = await self.next(ids, sampling)
                ids.append(token)
                last = "stop" if token == STOP else "length" if place + 1 == sampling.max_tokens else None
                yield Piece([token], [logprob], last)
        except (asyncio.CancelledError, GeneratorExit):
            self.stopped += 1
            raise

    async def next(self, ids: Sequence[int], sampling: Sampling) -> tuple[int, float]:
        await asyncio.sleep(0)
        return hashed(ids, self.weight)

    def ready(self) -> bool:
        return self.alive

    def load(self, weights: Path, version: int) -> None:
        if self.refuses:
            raise ValueError(self.refuses)
        if not self.alive:
            raise ServerFailure(f"{self.name} is gone", gone=True)
        self.weight = float(load_file(weights / "model.safetensors")["weight"])
        self.loads.append(version)

    def close(self) -> None:
        self.closed = True


@dataclass
class DirectLocal(Direct):
    """The same, whose tokens are those of a real model, one request a token."""

    engine: LocalEngine | None = None

    async def next(self, ids: Sequence[int], sampling: Sampling) -> tuple[int, float]:
        assert self.engine is not None
        one = await self.engine.generate(ids, replace(sampling, max_tokens=1))
        return one.token_ids[0], one.logprobs[0]
