"""Samples on servers: token ids in, token ids out, and nobody notices which server, or which weights, went on.

A reply is streamed, so what is sampled is here already when a server dies or the weights change. Whoever goes on reads
the prompt and the tokens so far.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from torch import Tensor

from turnwise.engines.reply import Reply
from turnwise.engines.routing import Counters, Router
from turnwise.engines.servers import Piece, Server, ServerFailure, WrongWeights
from turnwise.engines.weights import WeightsFolder
from turnwise.seeds import derive
from turnwise.types import Finish, Generation, Sampling

_POLL_S = 0.02  # between looks at whether there is a server and no pause
_LONGEST_QUEUE = 10  # times as long as a server may send nothing to anybody, a request waits for its next token
_MOST_FAILURES = 10  # of one request: it may be what kills the servers
_FIRST_PROBE_S, _SLOWEST_PROBE_S = 0.5, 30.0


@dataclass(eq=False)
class _Attempt:
    """One server at work on one reply."""

    era: int
    version: int
    scope: asyncio.Timeout  # ends it: when time is up, or at a pause
    heard: float  # when it began, or its newest piece came


class LLMServerClient:
    """An engine over several servers.

    `timeout_s` is how long a server may send nothing to anybody, `max_failures` how many failures in a row take it
    out, and `wait_s` how long a request waits while all are out. A server that is out is asked in the background
    whether it answers again, and gets the newest weights before it gets requests.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        weights: WeightsFolder,
        timeout_s: float = 300.0,
        max_failures: int = 3,
        wait_s: float = 600.0,
    ):
        self.version = 0
        self._servers = {server.name: server for server in servers}
        if not servers or len(self._servers) < len(servers):
            raise ValueError(f"engine.urls is {[server.name for server in servers]}; name each server once")
        self._router = Router(list(self._servers), max_failures)
        self._weights = weights
        self._timeout_s, self._wait_s = timeout_s, wait_s
        self._last_failure = ""
        self._refusals = dict.fromkeys(self._servers, 0)  # of weights, in a row, by servers that answer
        self._paused = False
        self._era = 0  # what is sampled within one is by the same weights
        self._under_way: dict[_Attempt, asyncio.AbstractEventLoop] = {}
        self._heard = dict.fromkeys(self._servers, 0.0)  # when the newest piece of any reply came
        self._loading = threading.Lock()
        self._closing = threading.Event()

    @property
    def counters(self) -> Mapping[str, Counters]:
        """What each server has done, by its address."""
        return self._router.counters

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, request_id: str = "") -> Generation:
        reply, failures, avoid = Reply(), 0, ""
        while True:
            server = await self._find(request_id, avoid)
            try:
                finish = await self._go_on(server, prompt_ids, sampling, reply)
            except ServerFailure as failure:
                failures, avoid = failures + 1, server.name
                self._note(server, failure)
                if failures == _MOST_FAILURES:
                    raise ValueError(f"a request failed {failures} times, at last since {failure}") from failure
                continue
            if finish is not None:
                return reply.finished(finish)

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Send weights to all servers, unless they have that version. Replies under way go on under the new weights."""
        if self._weights.newest is not None and version == self.version:
            return
        paused = self._paused
        self.pause()
        try:
            with self._loading, ThreadPoolExecutor() as pool:
                folder, self.version = self._weights.write(weights, version), version
                list(pool.map(partial(self._send, folder, version), [self._servers[name] for name in self._router.up]))
        finally:
            if not paused:
                self.resume()

    def pause(self) -> None:
        """Stop sampling; what is sampled so far is kept. May be called from any thread."""
        self._paused = True
        self._era += 1
        for attempt, loop in list(self._under_way.items()):
            loop.call_soon_threadsafe(self._expire, attempt)

    def resume(self) -> None:
        """Go on with what was paused."""
        self._era += 1
        self._paused = False

    def close(self) -> None:
        """Let go of the servers, and stop those that we started."""
        self._closing.set()
        for server in self._servers.values():
            server.close()

    async def _find(self, request_id: str, avoid: str) -> Server:
        """The server for a request, once there is one and no pause."""
        loop = asyncio.get_running_loop()
        since = loop.time()
        while True:
            if self._paused:
                since = loop.time()
            elif (name := self._router.choose(request_id, avoid)) is not None:
                return self._servers[name]
            elif min(self._refusals.values()) >= _MOST_FAILURES:
                raise ValueError(
                    f"no server takes the weights, at last since {self._last_failure}; all must see the folder "
                    f"{self._weights.folder} (engine.weights), and serve the model of model.path"
                )
            if loop.time() - since > self._wait_s:
                raise ValueError(
                    f"no server has answered for {self._wait_s:g} s (of {', '.join(self._servers)}): "
                    f"{self._last_failure}; start them again, and go on with --resume"
                )
            await asyncio.sleep(_POLL_S)

    async def _go_on(
        self, server: Server, prompt_ids: Sequence[int], sampling: Sampling, reply: Reply
    ) -> Finish | None:
        """Sample the rest of a reply, or as much as there is time for; None: it is not finished."""
        loop = asyncio.get_running_loop()
        attempt = _Attempt(self._era, self.version, asyncio.timeout(None), loop.time())
        done = len(reply.tokens)
        if done == sampling.max_tokens:  # it was lost after its last token
            return "length"
        if self._paused:  # since the server was found: nobody would stop what begins now
            return None
        # With the seed of the reply's start a server would draw the same numbers again.
        seed = derive("go on", sampling.seed, done) if done else sampling.seed
        rest = replace(sampling, max_tokens=sampling.max_tokens - done, seed=seed)
        prompt = (*prompt_ids, *reply.tokens)
        self._under_way[attempt] = loop
        watch = loop.create_task(self._watch(attempt, server.name))
        finish: Finish | None = None
        try:
            with self._router.busy(server.name, len(prompt) + rest.max_tokens):
                async with attempt.scope, aclosing(server.stream(prompt, rest, attempt.version)) as pieces:
                    finish = await self._read(attempt, server, pieces, reply)
        except WrongWeights:
            reply.cut(done)
            raise
        except (ServerFailure, TimeoutError) as failure:
            stopped = attempt.era != self._era  # by us, or by the server, to read new weights
            if finish is None and not stopped:
                if isinstance(failure, ServerFailure):
                    raise
                quiet_s = loop.time() - attempt.heard
                raise ServerFailure(f"the server at {server.name} has sent nothing for {quiet_s:.3g} s") from None
        finally:
            watch.cancel()
            del self._under_way[attempt]
        return finish

    async def _read(
        self, attempt: _Attempt, server: Server, pieces: AsyncGenerator[Piece, None], reply: Reply
    ) -> Finish | None:
        async for piece in pieces:
            if attempt.era != self._era:
                return None
            attempt.heard = self._heard[server.name] = asyncio.get_running_loop().time()
            reply.add(piece.token_ids, piece.logprobs, attempt.version)
            self.counters[server.name].tokens += len(piece.token_ids)
            if piece.finish_reason is not None:
                if not reply.tokens:
                    raise ServerFailure(f"the server at {server.name} ended a reply before its first token")
                self._router.succeeded(server.name)
                return piece.finish_reason
        raise ServerFailure(f"the server at {server.name} left off in the middle of a reply")

    async def _watch(self, attempt: _Attempt, name: str) -> None:
        """End an attempt when its server has sent nothing to anybody for long, or very long nothing to this one.

        A server that is busy lets requests wait.
        """
        loop = asyncio.get_running_loop()
        while True:
            silent = max(attempt.heard, self._heard[name]) + self._timeout_s
            left_s = min(silent, attempt.heard + _LONGEST_QUEUE * self._timeout_s) - loop.time()
            if left_s <= 0:
                return self._expire(attempt)
            await asyncio.sleep(left_s)

    def _expire(self, attempt: _Attempt) -> None:
        if attempt in self._under_way and not attempt.scope.expired():
            attempt.scope.reschedule(0)

    def _send(self, folder: Path, version: int, server: Server) -> None:
        try:
            server.load(folder, version)
        except ServerFailure as failure:  # its weights are old now
            self._note(server, ServerFailure(str(failure), gone=True))

    def _note(self, server: Server, failure: ServerFailure) -> None:
        self._last_failure = str(failure)
        if self._router.failed(server.name, failure.gone):
            threading.Thread(target=self._revive, args=(server,), daemon=True).start()

    def _revive(self, server: Server) -> None:
        """Ask a server that is out, less and less often, until it answers and has the newest weights."""
        pause_s = _FIRST_PROBE_S
        while not self._closing.wait(pause_s):
            pause_s = min(2 * pause_s, _SLOWEST_PROBE_S)
            if server.ready() and self._restore(server):
                return

    def _restore(self, server: Server) -> bool:
        """Give a server that answers again the newest weights, and then requests; False if it does not take them.

        However long it takes, the trainer goes on with the others meanwhile; then it is given newer ones.
        """
        while True:
            with self._loading:
                newest = self._weights.newest, self.version
            folder, version = newest
            try:
                if folder is not None:
                    server.load(folder, version)
            except (ServerFailure, ValueError) as failure:
                self._last_failure = str(failure)
                self._refusals[server.name] += not getattr(failure, "gone", False)
                return False
            self._refusals[server.name] = 0
            with self._loading:
                if (self._weights.newest, self.version) == newest:
                    self._router.restore(server.name)
                    return True
