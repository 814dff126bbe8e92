"""Whatever servers do, a reply is the one that a single good server would have given, or one clear sentence."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import brains
import pytest
import torch
from brains import STOP, hashed
from hypothesis import given, settings
from hypothesis import strategies as st
from servers import Direct, DirectLocal

from turnwise.engines.client import LLMServerClient
from turnwise.engines.local import LocalEngine
from turnwise.engines.servers import Piece, Server, ServerFailure
from turnwise.engines.weights import WeightsFolder
from turnwise.types import Generation, Sampling

GREEDY = Sampling(24, temperature=0)
PROMPTS = [tuple(range(n, 3 * n)) for n in range(1, 13)]


def expected(prompt: Sequence[int], weight: float = 0.0, most: int = 24) -> tuple[int, ...]:
    return brains.expected(prompt, most, weight)


LONG = next(prompt for prompt in PROMPTS if len(expected(prompt)) == 24)  # meets no stop token
SHORT = next(prompt for prompt in PROMPTS if len(expected(prompt)) < 24)


@pytest.fixture
def make(tmp_path: Path):
    made: list[LLMServerClient] = []

    def make(*servers: Direct, **limits: Any) -> LLMServerClient:
        made.append(LLMServerClient(servers, WeightsFolder(tmp_path), **{"wait_s": 20.0, "timeout_s": 20.0, **limits}))
        return made[-1]

    yield make
    for client in made:
        client.close()


def ask(client: LLMServerClient, *prompts: Sequence[int], sampling: Sampling = GREEDY) -> list[Generation]:
    async def ask() -> list[Generation]:
        return await asyncio.gather(*(client.generate(p, sampling, f"{n}") for n, p in enumerate(prompts)))

    return asyncio.run(ask())


def weights(weight: float) -> dict[str, torch.Tensor]:
    return {"weight": torch.tensor(weight)}


def until(condition: Any) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# -- one reply


def test_replies_are_those_of_the_model_and_every_token_has_its_log_prob(make):
    client = make(Direct("a"), Direct("b"))
    for prompt, reply in zip(PROMPTS, ask(client, *PROMPTS), strict=True):
        assert reply.token_ids == expected(prompt)
        assert reply.logprobs == tuple(-token / 100 - 0.01 for token in reply.token_ids)
        assert reply.finish_reason == ("stop" if reply.token_ids[-1] == STOP else "length")
        assert (reply.policy_version, reply.versions) == (0, ())
    counters = client.counters.values()
    assert sum(one.requests for one in counters) == len(PROMPTS) and all(one.requests for one in counters)
    assert sum(one.tokens for one in counters) == sum(len(expected(prompt)) for prompt in PROMPTS)
    assert [(one.failures, one.moved) for one in counters] == [(0, 0)] * 2


def test_a_client_outlives_its_event_loop(make):
    client = make(Direct("a"))
    assert ask(client, LONG) == ask(client, LONG)


def test_whoever_gives_up_a_request_stops_its_sampling(make):
    server = Direct("a", lambda server, place: asyncio.sleep(30) if place == 3 else None)
    client = make(server)

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.generate(LONG, GREEDY, "x"), 0.1)

    asyncio.run(give_up())
    assert server.stopped == 1


# -- pauses


def interrupted(client: LLMServerClient, server: Direct, place: int, between: Any) -> Generation:
    """The reply to LONG, paused when it has `place` tokens, with `between` called during the pause."""

    def pause(server: Direct, at: int) -> Any:
        if at == place and len(server.prompts) == 1:
            client.pause()
            return asyncio.sleep(30)  # only a pause that stops what runs ends this in time
        return None

    server.before = pause

    async def run() -> Generation:
        task = asyncio.create_task(client.generate(LONG, GREEDY, "x"))
        while not server.stopped:
            await asyncio.sleep(0.001)
        for _ in range(3):
            await asyncio.sleep(0)
        assert not task.done() and len(server.prompts) == 1
        between()
        client.resume()
        return await asyncio.wait_for(task, 10)

    return asyncio.run(run())


@pytest.mark.parametrize("place", range(24))
def test_a_reply_that_was_paused_anywhere_is_the_uninterrupted_one(make, place):
    server = Direct("a")
    client = make(server)
    reply = interrupted(client, server, place, lambda: None)
    assert reply.token_ids == expected(LONG)
    assert reply.versions == ()
    assert server.prompts == [LONG, LONG + expected(LONG)[:place]]
    assert [sampling.max_tokens for sampling in server.samplings] == [24, 24 - place]
    assert len({sampling.seed for sampling in server.samplings}) == (2 if place else 1)


@pytest.mark.parametrize("place", range(0, 20, 3))
def test_a_real_model_goes_on_from_its_own_tokens(tiny, make, place):
    engine = LocalEngine(tiny[0], frozenset([STOP]), nullcontext())
    whole = asyncio.run(engine.generate(LONG, GREEDY))
    server = DirectLocal("a", engine=engine)
    reply = interrupted(make(server), server, place, lambda: None)
    assert replace(reply, logprobs=()) == replace(whole, logprobs=())
    assert reply.logprobs == pytest.approx(whole.logprobs, abs=1e-4)
    assert len(whole.token_ids) == 24


@pytest.mark.parametrize("place", [0, 1, 11, 23])
def test_after_new_weights_a_reply_goes_on_under_them(make, place):
    server = Direct("a")
    client = make(server)
    reply = interrupted(client, server, place, lambda: client.load(weights(3.0), 5))
    head = expected(LONG)[:place]
    assert reply.token_ids == head + expected((*LONG, *head), 3.0, 24 - place)
    assert reply.policy_version == 5
    assert reply.versions == ((0,) * place + (5,) * (len(reply.token_ids) - place) if place else ())


def test_loading_alone_stops_and_resumes_from_any_thread(make):
    """And many times: every token is of the weights whose version it carries."""
    servers = [Direct(name, lambda server, place: asyncio.sleep(0.002)) for name in "abc"]
    client = make(*servers)

    enough = threading.Event()

    def train() -> None:
        for version in range(1, 1000):
            client.load(weights(float(version)), version)
            if enough.wait(0.01):
                break

    trainer = threading.Thread(target=train)
    trainer.start()
    replies = []
    while trainer.is_alive() and not enough.is_set():  # until weights came while some reply was under way
        replies += zip(PROMPTS, ask(client, *PROMPTS), strict=True)
        if any(len(set(reply.versions)) > 1 for _, reply in replies):
            enough.set()
    trainer.join()
    assert enough.is_set()
    for prompt, reply in replies:
        versions = reply.versions or (reply.policy_version,) * len(reply.token_ids)
        assert list(versions) == sorted(versions) and versions[-1] == reply.policy_version
        for place, version in enumerate(versions):
            assert reply.token_ids[place] == hashed([*prompt, *reply.token_ids[:place]], float(version))[0]


def test_what_is_paused_between_finding_a_server_and_asking_it_waits(make):
    server = Direct("a", lambda server, place: asyncio.sleep(0.01))
    client = make(server)
    find = client._find

    def load() -> None:
        client.load(weights(3.0), 5)
        client.resume()

    async def find_and_pause(*arguments: str) -> Server:
        found = await find(*arguments)
        if not client.version:
            client.pause()
            threading.Timer(0.1, load).start()
        return found

    client._find = find_and_pause
    (reply,) = ask(client, LONG)
    assert (reply.token_ids, reply.policy_version) == (expected(LONG, 3.0), 5)
    assert len(server.prompts) == 1


def test_a_finished_reply_is_not_gone_on_with_by_weights_that_come_while_it_is_closed(make):
    class Slow(Direct):
        async def stream(self, prompt_ids: Any, sampling: Any, version: int) -> AsyncGenerator[Piece, None]:
            try:
                async for piece in super().stream(prompt_ids, sampling, version):
                    yield piece
            finally:
                if not self.loads:
                    await asyncio.to_thread(client.load, weights(3.0), 5)
                    await asyncio.sleep(0.05)

    server = Slow("a")
    client = make(server)
    (reply,) = ask(client, SHORT)
    assert reply.token_ids == expected(SHORT)
    assert (reply.policy_version, len(server.prompts)) == (0, 1)


def test_a_pause_is_no_failure_and_waits_as_long_as_it_must(make):
    client = make(Direct("a"), wait_s=0.05)
    client.pause()
    threading.Timer(0.3, client.resume).start()
    (reply,) = ask(client, LONG)
    assert reply.token_ids == expected(LONG)
    assert client.counters["a"].failures == 0


def test_a_load_in_a_pause_does_not_end_it(make):
    client = make(Direct("a"))
    client.pause()
    client.load(weights(1.0), 1)

    async def run() -> Generation:
        task = asyncio.create_task(client.generate(LONG, GREEDY))
        await asyncio.sleep(0.1)
        assert not task.done()
        client.resume()
        return await task

    assert asyncio.run(run()).token_ids == expected(LONG, 1.0)


# -- failures


@settings(max_examples=15)
@given(places=st.lists(st.integers(0, 23), min_size=1, max_size=4))
def test_a_server_that_dies_anywhere_costs_nothing_but_time(tmp_path_factory, places):
    """One server after the other dies for good, each at its own token; the last one lives."""

    def dies_at(place: int) -> Any:
        def die(server: Direct, at: int) -> None:
            server.alive = server.alive and at < place

        return die

    servers = [Direct(f"{n}", dies_at(place)) for n, place in enumerate(places)] + [Direct("good")]
    client = LLMServerClient(servers, WeightsFolder(tmp_path_factory.mktemp("weights")), wait_s=20.0)
    for prompt, reply in zip(PROMPTS[:4], ask(client, *PROMPTS[:4]), strict=True):
        assert reply.token_ids == expected(prompt)
        assert len(reply.logprobs) == len(reply.token_ids)
    client.close()


def fails(times: int, error: Exception) -> Any:
    left = [times]

    def fail(server: Direct, place: int) -> None:
        if place == 2 and left[0]:
            left[0] -= 1
            raise error

    return fail


def test_a_failure_is_retried_elsewhere_and_counted(make):
    failure = ServerFailure("busy")
    client = make(Direct("a", fails(1, failure)), Direct("b", fails(1, failure)), max_failures=2)
    (reply,) = ask(client, LONG)
    assert reply.token_ids == expected(LONG)
    assert [one.failures for one in client.counters.values()] == [1, 1]
    assert sum(one.moved for one in client.counters.values()) == 2
    assert sum(one.tokens for one in client.counters.values()) == 24


def test_a_server_that_sends_nothing_is_left(make):
    hangs = Direct("a", lambda server, place: asyncio.sleep(30) if place == 5 else None)
    client = make(hangs, Direct("b"), timeout_s=0.2, max_failures=1)
    for prompt, reply in zip(PROMPTS, ask(client, *PROMPTS), strict=True):
        assert reply.token_ids == expected(prompt)
    assert hangs.stopped > 0


@dataclass
class Busy(Direct):
    """Lets the first request for SHORT wait for so many seconds, while it answers others at leisure."""

    waits_s: float = 0.0

    async def stream(self, prompt_ids: Sequence[int], sampling: Sampling, version: int) -> AsyncGenerator[Piece, None]:
        waits_s, self.waits_s = (self.waits_s, 0.0) if prompt_ids == SHORT else (0.0, self.waits_s)
        try:
            await asyncio.sleep(waits_s)
        except asyncio.CancelledError:
            self.stopped += 1
            raise
        async for piece in super().stream(prompt_ids, sampling, version):
            await asyncio.sleep(0.06)
            yield piece


@pytest.mark.parametrize(("waits_s", "longest", "failures"), [(1.1, 100, 0), (30.0, 2, 1)])
def test_a_busy_server_may_let_a_request_wait_but_not_for_ever(make, monkeypatch, waits_s, longest, failures):
    """While it sends others their tokens it is not silent, though one waits for three times `timeout_s`."""
    monkeypatch.setattr("turnwise.engines.client._LONGEST_QUEUE", longest)
    client = make(Busy("a", waits_s=waits_s), timeout_s=0.35, max_failures=9)
    for prompt, reply in zip((LONG, SHORT), ask(client, LONG, SHORT), strict=True):
        assert reply.token_ids == expected(prompt)
    assert client.counters["a"].failures == failures


def test_a_slow_server_is_not_a_silent_one(make):
    client = make(Direct("a", lambda server, place: asyncio.sleep(0.05)), timeout_s=0.4)
    (reply,) = ask(client, LONG)  # takes three times as long in all
    assert reply.token_ids == expected(LONG) and client.counters["a"].failures == 0


def test_a_server_that_comes_back_has_the_newest_weights_first(make):
    one, other = Direct("a"), Direct("b")
    client = make(one, other)
    one.alive = False
    client.load(weights(1.0), 1)
    client.load(weights(2.0), 2)
    assert (one.loads, other.loads) == ([], [1, 2])
    assert {reply.token_ids for reply in ask(client, LONG, LONG)} == {expected(LONG, 2.0)}
    assert not one.prompts
    one.alive, other.alive = True, False
    (reply,) = ask(client, LONG)  # finds the other gone, and waits
    assert reply.token_ids == expected(LONG, 2.0) and one.prompts and one.loads == [2]


@dataclass
class Hanging(Direct):
    """Takes no weights until it may."""

    asked: list[int] = field(default_factory=list)
    go_on: threading.Event = field(default_factory=threading.Event)

    def load(self, weights: Path, version: int) -> None:
        self.asked.append(version)
        self.go_on.wait(20)
        if not weights.exists():
            raise ServerFailure("these weights are gone")
        super().load(weights, version)


def test_a_server_that_hangs_over_its_weights_holds_up_nobody(make):
    one, other = Hanging("a", alive=False), Direct("b")
    client = make(one, other, max_failures=1)
    client._note(one, ServerFailure("a is gone", gone=True))
    client.load(weights(1.0), 1)
    one.alive = True
    until(lambda: one.asked == [1])
    client.load(weights(2.0), 2)
    (reply,) = ask(client, LONG)
    assert reply.token_ids == expected(LONG, 2.0) and not one.go_on.is_set()
    one.go_on.set()
    until(lambda: one.loads == [2])
    other.alive = False
    assert ask(client, LONG) == [reply] and one.prompts


def test_when_all_are_gone_it_waits_and_then_says_so(make):
    servers = [Direct(name, lambda server, place: None, alive=False) for name in "ab"]
    client = make(*servers, wait_s=0.3)
    with pytest.raises(ValueError, match=r"no server has answered for 0.3 s \(of a, b\): [ab] is gone; .*--resume"):
        ask(client, LONG)
    servers[1].alive = True
    until(lambda: client.counters["b"].failures == 1 and ask(client, LONG)[0].token_ids == expected(LONG))


def test_a_request_that_kills_whoever_serves_it_ends(make):
    client = make(Direct("a", fails(99, ServerFailure("no memory"))), max_failures=99)
    with pytest.raises(ValueError, match="failed 10 times, at last since no memory"):
        ask(client, LONG)


def test_a_stream_that_ends_in_the_middle_is_a_failure(make):
    class Breaks(Direct):
        async def stream(self, prompt_ids: Sequence[int], sampling: Sampling, version: int) -> Any:
            async for piece in super().stream(prompt_ids, sampling, version):
                yield piece
                if len(self.prompts) == 1:
                    return

    client = make(Breaks("a"))
    assert ask(client, LONG)[0].token_ids == expected(LONG)
    assert client.counters["a"].failures == 1


def test_a_reply_without_a_token_is_a_failure(make):
    class Silent(Direct):
        async def stream(self, prompt_ids: Sequence[int], sampling: Sampling, version: int) -> Any:
            yield Piece([], [], "length")

    client = make(Silent("a"), Direct("b"))
    assert [reply.token_ids for reply in ask(client, *PROMPTS)] == [expected(prompt) for prompt in PROMPTS]
    with pytest.raises(ValueError, match="a ended a reply before its first token"):
        ask(make(Silent("a"), max_failures=99), LONG)


def test_a_reply_that_was_lost_after_its_last_token_is_whole(make):
    class Loses(Direct):
        async def stream(self, prompt_ids: Sequence[int], sampling: Sampling, version: int) -> Any:
            async for piece in super().stream(prompt_ids, sampling, version):
                yield Piece(piece.token_ids, piece.logprobs, None)
            raise ServerFailure("gone", gone=True)

    reply = ask(make(Loses("a"), Loses("b")), LONG)[0]
    assert (reply.token_ids, reply.finish_reason) == (expected(LONG), "length")


def test_mistakes_are_not_retried(make):
    client = make(Direct("a", fails(1, ValueError("the prompt is too long"))), Direct("b"))
    with pytest.raises(ValueError, match="too long"):
        ask(client, *PROMPTS)
    refusing = make(Direct("c", refuses="no way to load weights"))
    with pytest.raises(ValueError, match="no way"):
        refusing.load(weights(1.0), 1)
    assert ask(refusing, LONG)  # and is not left in a pause


@pytest.mark.parametrize("names", [[], ["a", "a"]])
def test_servers_are_named_once(make, names):
    with pytest.raises(ValueError, match=r"engine\.urls"):
        make(*map(Direct, names))


def test_closing_closes_the_servers(make):
    servers = [Direct("a"), Direct("b")]
    make(*servers).close()
    assert all(server.closed for server in servers)


def test_weights_that_servers_have_are_not_sent_again(make):
    servers = [Direct("a"), Direct("b")]
    client = make(*servers)
    for version in (0, 0, 1, 1, 1, 2):
        client.load(weights(1.0), version)
    assert [server.loads for server in servers] == [[0, 1, 2]] * 2


def test_servers_that_answer_and_take_no_weights_end_the_run_with_a_sentence(make, monkeypatch):
    class Choosy(Direct):
        def load(self, weights: Path, version: int) -> None:
            raise ServerFailure("500: there is no such folder")

    monkeypatch.setattr("turnwise.engines.client._FIRST_PROBE_S", 0.01)
    monkeypatch.setattr("turnwise.engines.client._SLOWEST_PROBE_S", 0.02)
    client = make(Choosy("a"), Choosy("b"))
    client.load(weights(1.0), 1)
    with pytest.raises(ValueError, match=r"no server takes the weights, at last since 500: .* \(engine.weights\)"):
        asyncio.run(client.generate(PROMPTS[0], GREEDY))
