"""64 episodes at once whose tools take their time: does anybody wait for another's tool?

Every episode calls a tool four times and answers: the model computes as ever, and is then told which token it has
sampled. What the engine does for a token is compared with a run whose tools answer at once, and the whole with the
slowest episode by itself.
"""

import asyncio
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import torch

from benchmarks.common import record
from turnwise.collector import Collector
from turnwise.config import Config
from turnwise.engines import drafts
from turnwise.engines.drafts import Draft
from turnwise.engines.local import LocalEngine
from turnwise.models import arithmetic
from turnwise.players import open_player
from turnwise.protocols import Codec
from turnwise.recipe import parse_config
from turnwise.seeds import derive
from turnwise.tools import ToolContext, function_tool
from turnwise.types import Generation, Sampling

EPISODES, CALLS = 64, 4
MEAN_S = 0.5
ROUNDS = 3
CALL = '<tool_call>\n{"name": "ponder", "arguments": {}}\n</tool_call>'


class Rows:
    """As many questions as there are episodes; `mean_s` is carried to the tool."""

    def __init__(self, mean_s: float = 0.0):
        self.mean_s = mean_s

    def rows(self, split: str) -> Iterator[dict[str, Any]]:
        for number in range(EPISODES):
            yield {"prompt": f"{split} question {number} of mean {self.mean_s}", "ground_truth": "1"}


def latency(episode: str, turn: int, mean_s: float) -> float:
    """Drawn from the exponential law, the same in every run."""
    share = (derive("latency", episode, turn) + 0.5) / 2**62
    return -mean_s * math.log(share)


@function_tool
async def ponder(context: ToolContext) -> str:
    """Take one's time."""
    mean_s = float(str(context.messages[0]["content"]).rpartition(" ")[2])
    await asyncio.sleep(latency(context.episode, context.turn, mean_s))
    return "done"


class Told(LocalEngine):
    """Computes as for any reply, and then takes the words that it is told to say: calls first, an answer at last."""

    def __init__(self, engine: LocalEngine, codec: Codec):
        super().__init__(engine.model, frozenset(), arithmetic("auto", engine.model.device))
        self.calls, self.answer = (list(codec.encode(text)) for text in (CALL, "#### 1"))
        self.busy_s = 0.0
        self.tokens = 0

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, request_id: str = "") -> Generation:
        words = self.words(prompt_ids)
        self.tokens += len(words)
        return await super().generate(prompt_ids, replace(sampling, max_tokens=len(words)))

    def words(self, prompt: Sequence[int]) -> list[int]:
        asked = sum(list(prompt[at : at + len(self.calls)]) == self.calls for at in range(len(prompt)))
        return self.answer if asked == CALLS else self.calls

    def _step(self) -> None:
        start = time.perf_counter()
        super()._step()
        self.busy_s += time.perf_counter() - start

    def _sample(self, first: int, drafts: Sequence[Sequence[Draft]], logits: torch.Tensor) -> None:
        super()._sample(first, drafts, logits)
        for request in self._running[first : first + len(drafts)]:
            words = self.calls if request.sampling.max_tokens == len(self.calls) else self.answer
            request.tokens[-1] = words[len(request.tokens) - 1]


def main() -> None:
    drafts._AHEAD = 0  # drafts are of what the model would say, not of what it is told to
    busy: dict[float, list[float]] = {0.0: [], MEAN_S: []}
    walls: list[float] = []
    for _ in range(ROUNDS):
        for mean_s, series in busy.items():
            wall, busy_s, tokens, slowest = run(mean_s)
            series.append(busy_s / tokens)
            if mean_s:
                walls.append(wall / slowest)
    ratio = statistics.median(slow / quick for quick, slow in zip(busy[0.0], busy[MEAN_S], strict=True))
    record(
        "tool_latency",
        {
            "busy_ms_a_token_without_latency": 1e3 * statistics.median(busy[0.0]),
            "busy_ms_a_token": 1e3 * statistics.median(busy[MEAN_S]),
            "busy_a_token_of_that_without_latency": ratio,
            "wall_of_the_slowest_episode_alone": statistics.median(walls),
        },
    )


def run(mean_s: float) -> tuple[float, float, int, float]:
    """Seconds in all, seconds of the engine, tokens, and the seconds that the slowest episode takes by itself."""
    config = settings(mean_s)
    engine, codec = open_player(config, None)
    assert isinstance(engine, LocalEngine)
    told = Told(engine, codec)
    with closing(Collector(config, codec)) as collector:
        start = time.perf_counter()
        segments = collector.collect(told)
        wall = time.perf_counter() - start
    assert [len(one.turns) for one in segments] == [CALLS + 1] * EPISODES
    waits = [
        sum(latency(f"data/{one.slot}/{one.episode}", turn, mean_s) for turn in range(1, CALLS + 1)) for one in segments
    ]
    return wall, told.busy_s, told.tokens, max(waits) + alone()


def alone() -> float:
    """Seconds of one episode without anybody beside it and without latency."""
    config = settings(0.0, episodes=1)
    engine, codec = open_player(config, None)
    assert isinstance(engine, LocalEngine)
    with closing(Collector(config, codec)) as collector:
        start = time.perf_counter()
        collector.collect(Told(engine, codec))
        return time.perf_counter() - start


def settings(mean_s: float, episodes: int = EPISODES) -> Config:
    return parse_config(
        {
            "model": {"path": "tiny-tools"},
            "agent": {"use": "tool", "tools": [f"{__name__}:ponder"]},
            "data": {"generate": {"use": f"{__name__}:Rows", "mean_s": mean_s}},
            "rollout": {"n_env": episodes, "episodes": 1, "max_prompt_tokens": 2048},
            "update": {"minibatch": 1},
        }
    )


if __name__ == "__main__":
    main()
