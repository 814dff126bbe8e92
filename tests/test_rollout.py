import asyncio
import contextlib
import gc
import itertools
import json
import math
import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from helpers import Counter, Scripted, make_tokenizer, play_config

from turnwise.batch import pack
from turnwise.batch_loop import BatchLoop
from turnwise.collector import Collector, _is_kept
from turnwise.config import Config
from turnwise.engines.decoder import Decoder
from turnwise.engines.local import LocalEngine
from turnwise.failures import EpisodeFailure
from turnwise.memory.window import Window
from turnwise.parse import ThinkAct
from turnwise.render import Renderer
from turnwise.types import Action, Ending, Generation, Message, Observation, Segment, Turn


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(make_tokenizer())


def say(*actions: str) -> list[str]:
    return [f"ACTION: {action}" for action in actions]


def play(renderer: Renderer, replies: Any = ("ACTION: add",), batches: int = 1, **tree: Any) -> list[list[Segment]]:
    """The segments of each batch."""
    collector, engine = Collector(play_config(**tree), renderer), Scripted(renderer, replies)
    return [collector.collect(engine) for _ in range(batches)]


def step_of(turn: Turn) -> int:
    """The environment's own clock, as the turn observed it."""
    found = re.search(r"step (\d+) ", turn.observation.text)
    assert found
    return int(found[1])


def acted(segments: list[Segment], slot: int) -> list[Turn]:
    return [turn for one in segments if one.slot == slot for turn in one.turns if not turn.of_memory]


# -- the size and the order of a batch


@pytest.mark.parametrize("mode", ["async", "lockstep"])
@pytest.mark.parametrize("limit", [1, 2, 5, 100])
@pytest.mark.parametrize("workers", ["inline", "thread"])
def test_every_slot_gives_as_many_turns_to_every_batch(renderer, mode, limit, workers):
    batches = play(
        renderer,
        batches=3,
        rollout={"n_env": 3, "e_len": 4, "mode": mode},
        environment={"kwargs": {"limit": limit}, "workers": workers},
    )
    for segments in batches:
        assert [len(acted(segments, slot)) for slot in range(3)] == [4, 4, 4]
        assert [one.slot for one in segments] == sorted(one.slot for one in segments)
        assert all(one.turns for one in segments)
    for slot in range(3):
        assert [step_of(turn) for segments in batches for turn in acted(segments, slot)] == [
            n % limit for n in range(12)
        ]
        episodes = [one.episode for segments in batches for one in segments if one.slot == slot]
        assert episodes == sorted(episodes)
        assert set(episodes) == set(range(math.ceil(12 / limit)))


class Sleepy(Counter):
    """Takes its time, so many milliseconds a step."""

    def __init__(self, sleep_ms: float):
        super().__init__()
        self.sleep_ms = sleep_ms

    def step(self, action: str) -> Any:
        time.sleep(self.sleep_ms / 1000)
        return super().step(action)


@pytest.mark.parametrize("memory", ["window", "full", "note"])
@pytest.mark.parametrize("limit", [1, 3, 100])
@pytest.mark.parametrize("workers", ["inline", "thread"])
def test_an_elastic_batch_has_as_many_turns_in_all(renderer, memory, limit, workers):
    tree = {"environment": {"kwargs": {"limit": limit}, "workers": workers}, "memory": {"use": memory}}
    batches = play(renderer, say("add"), 3, rollout={"n_env": 3, "e_len": 4, "mode": "elastic"}, **tree)
    for segments in batches:
        assert sum(len(acted(segments, slot)) for slot in range(3)) == 12
        assert [one.slot for one in segments] == sorted(one.slot for one in segments)
    for slot in range(3):
        steps = [step_of(turn) for segments in batches for turn in acted(segments, slot)]
        assert steps == [n % limit for n in range(len(steps))]  # no turn is lost between batches


@pytest.mark.parametrize("precision", [nullcontext(), torch.autocast("cpu", torch.bfloat16)])
@pytest.mark.parametrize("decoder", [True, False])
def test_replies_under_way_when_an_elastic_batch_is_full_go_on_by_the_next_weights(
    tiny, monkeypatch, precision, decoder
):
    model, tokenizer = tiny
    monkeypatch.setattr(Decoder, "fits", lambda model, bf16: decoder)
    collector = Collector(play_config(rollout={"n_env": 3, "e_len": 2, "mode": "elastic"}), Renderer(tokenizer))
    engine = LocalEngine(model.train(), frozenset(range(2, 259, 9)), precision)
    replies: list[Generation] = []
    for version in range(6):
        engine.load({}, version)
        segments = collector.collect(engine)
        # Between two batches the model is the trainer's.
        assert model.training and not torch.is_autocast_enabled("cpu")
        replies += [turn.generation for one in segments for turn in one.turns]
        assert pack(segments).newest.any()
    mixed = [one for one in replies if one.versions]
    assert mixed
    for one in mixed:
        assert one.versions == tuple(sorted(one.versions)) and len(one.versions) == len(one.token_ids)
        assert one.policy_version == one.versions[-1] <= one.versions[0] + 1  # no reply is so long
    collector.close()
    model.eval()


def test_time_stands_still_between_batches(renderer):
    """A call that is under way when a batch ends has as long as if the next one came at once."""
    loop = BatchLoop()

    async def call() -> str:
        async with asyncio.timeout(0.3):
            await asyncio.sleep(0.2)
        return "answered"

    async def collect() -> asyncio.Task[str]:
        task = asyncio.ensure_future(call())
        await asyncio.sleep(0.05)
        return task

    task = loop.run_until_complete(collect())
    before = loop.time()
    time.sleep(0.5)
    assert loop.time() - before >= 0.5  # as long as it is not run, it does not know
    assert loop.run_until_complete(task) == "answered"
    assert 0.1 < loop.time() - before < 0.5
    loop.close()


def test_in_an_elastic_batch_fast_slots_play_more(renderer):
    tasks = {"slow": {"sleep_ms": 100}, "fast": {"sleep_ms": 1}}
    environment = {"id": f"{__name__}:Sleepy", "workers": "thread", "tasks": tasks}
    rollout = {"n_env": 4, "e_len": 10, "mode": "elastic"}
    for segments in play(renderer, batches=2, environment=environment, rollout=rollout):
        turns = [len(acted(segments, slot)) for slot in range(4)]
        assert sum(turns) == 40
        assert max(turns[0], turns[2]) < min(turns[1], turns[3])


def test_what_a_memory_asks_is_not_counted_as_a_turn(renderer):
    config = {"rollout": {"n_env": 2, "e_len": 4}, "memory": {"use": "note"}}
    for number, segments in enumerate(play(renderer, say("add"), 2, **config)):
        for slot in range(2):
            assert len(acted(segments, slot)) == 4
            assert sum(len(one.turns) for one in segments if one.slot == slot) == (8 if number else 7)


@pytest.mark.parametrize("workers", ["inline", "thread"])
@pytest.mark.parametrize("memory", ["window", "note"])
def test_an_elastic_batch_goes_on_where_the_one_before_was_cut(renderer, memory, workers):
    tree = {"environment": {"kwargs": {"limit": 5}, "workers": workers}, "memory": {"use": memory}}
    batches = play(renderer, batches=6, rollout={"n_env": 3, "e_len": 4, "mode": "elastic"}, **tree)
    cuts = 0
    for slot in range(3):
        segments = [one for segments in batches for one in segments if one.slot == slot]
        for cut, goes_on in itertools.pairwise(segments):
            if cut.end == "cut":
                assert (cut.outcome, cut.episode) == (None, goes_on.episode)
                assert goes_on.turns[0].prompt_ids == cut.final_prompt_ids
                cuts += 1
            else:
                assert cut.episode + 1 == goes_on.episode
    assert cuts


def test_a_batch_goes_on_where_the_one_before_was_cut(renderer):
    before, *_, after = play(renderer, batches=2, environment={"kwargs": {"limit": 5}})
    for slot in range(2):
        (cut,) = [one for one in before if one.slot == slot]
        goes_on = next(one for one in after if one.slot == slot)
        assert (cut.end, cut.outcome) == ("cut", None)
        assert goes_on.episode == cut.episode
        assert goes_on.turns[0].prompt_ids == cut.final_prompt_ids
        assert step_of(goes_on.turns[0]) == 3


def test_a_batch_that_ends_with_an_episode_goes_on_with_a_new_one(renderer):
    before, after = play(renderer, batches=2, environment={"kwargs": {"limit": 3}})
    for slot in range(2):
        old = next(one for one in before if one.slot == slot)
        new = next(one for one in after if one.slot == slot)
        assert (old.end, new.episode) == ("truncated", old.episode + 1)
        assert new.turns[0].prompt_ids != old.final_prompt_ids


def test_an_episode_may_span_many_batches(renderer):
    batches = play(renderer, batches=4, environment={"kwargs": {"limit": 11}}, rollout={"n_env": 1})
    segments = [one for segments in batches for one in segments]
    assert [one.end for one in segments] == ["cut", "cut", "cut", "truncated", "cut"]
    assert [one.episode for one in segments] == [0, 0, 0, 0, 1]
    assert [len(one.turns) for one in segments] == [3, 3, 3, 2, 1]
    outcome = segments[3].outcome
    assert outcome and (outcome.turns, outcome.episode_return) == (11, 0.0)
    names = [{turn.observation.text.split()[0] for turn in one.turns} for one in segments]
    assert names[0] == names[1] == names[2] == names[3] != names[4]


def test_slots_are_dealt_the_tasks_in_turn(renderer):
    tasks = {"short": {"limit": 1}, "long": {"limit": 9}}
    (segments,) = play(renderer, environment={"tasks": tasks}, rollout={"n_env": 3, "e_len": 2})
    assert [(one.slot, one.task, one.end) for one in segments] == [
        (0, "short", "truncated"),
        (0, "short", "truncated"),
        (1, "long", "cut"),
        (2, "short", "truncated"),
        (2, "short", "truncated"),
    ]


def test_a_task_gets_its_share_of_the_slots(renderer):
    tasks = {"one": {}, "other": {}, "third": {}}
    environment = {"tasks": tasks, "shares": {"other": 3, "third": 2}}
    (segments,) = play(renderer, environment=environment, rollout={"n_env": 8, "e_len": 1})
    assert [one.task for one in segments] == ["one", "other", "third", "other", "third", "other", "one", "other"]


# -- the ends


class Away(Counter):
    """A world that is away for some resets in a row; each of those comes to nothing."""

    resets = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        Away.resets += 1
        if Away.resets <= 5:
            raise ConnectionError("nobody there")
        return super().reset(seed=seed, options=options)


def test_what_fails_again_and_again_is_left_alone_for_a_while(renderer, monkeypatch):
    slept: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        slept.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", note)
    monkeypatch.setattr("turnwise.slot._LONGEST_PAUSE_S", 0.9)
    monkeypatch.setattr(Away, "resets", 0)
    (segments,) = play(renderer, rollout={"n_env": 1, "e_len": 2}, environment={"id": f"{__name__}:Away"})
    assert [seconds for seconds in slept if seconds] == [0.25, 0.5, 0.9]
    assert sum(len(one.turns) for one in segments) == 2


def test_a_limit_of_ours_truncates_what_the_environment_would_play_on(renderer):
    (own,) = play(renderer, rollout={"n_env": 1, "e_len": 5}, environment={"kwargs": {"limit": 4}})
    (ours,) = play(
        renderer, rollout={"n_env": 1, "e_len": 5, "max_episode_turns": 4}, environment={"kwargs": {"limit": 9}}
    )
    assert [(one.end, len(one.turns)) for one in ours] == [("truncated", 4), ("cut", 1)]
    assert ours[0].final_prompt_ids == own[0].final_prompt_ids
    assert ours[0].outcome and ours[0].outcome.success is False


class Late(Counter):
    """Tells of success when an episode ends, and not before."""

    def step(self, action: str):
        seen, reward, terminated, truncated, info = super().step(action)
        return seen, reward, terminated, truncated, info if terminated or truncated else {}


@pytest.mark.parametrize(("reward", "success"), [("binary", False), ("native", None)])
def test_what_our_limit_ends_is_no_success(renderer, reward, success):
    """Where it must be one or the other, as a binary reward is."""
    environment = {"id": f"{__name__}:Late", "reward": reward}
    (ours,) = play(renderer, rollout={"n_env": 1, "e_len": 3, "max_episode_turns": 3}, environment=environment)
    assert [one.outcome.success for one in ours if one.outcome] == [success]


def test_a_truncated_segment_ends_with_the_final_observation(renderer):
    (segments,) = play(renderer, rollout={"n_env": 1, "e_len": 5}, environment={"kwargs": {"limit": 4}})
    final = renderer.tokenizer.decode(segments[0].final_prompt_ids)
    name = segments[0].turns[0].observation.text.split()[0]
    assert segments[0].end == "truncated"
    assert f"{name} step 4 count 4\nNow 4?" in final
    assert f"{name} step 3 count 3" in final  # the window's turn before
    assert segments[1].turns[0].observation.text.split()[0] not in final


def test_a_cut_segment_ends_with_the_next_observation(renderer):
    (segments,) = play(renderer, rollout={"n_env": 1, "e_len": 2})
    final = renderer.tokenizer.decode(segments[0].final_prompt_ids)
    assert segments[0].end == "cut"
    assert "step 2 count 2\nNow 2?" in final
    assert final.endswith("<|im_start|>assistant\n")


@pytest.mark.parametrize(("action", "success"), [("win", True), ("lose", False)])
def test_a_terminated_segment_has_nothing_after_it(renderer, action, success):
    (segments,) = play(renderer, say("add", action), rollout={"n_env": 1, "e_len": 2})
    (only,) = segments
    assert (only.end, only.final_prompt_ids) == ("terminated", ())
    assert only.outcome and (only.outcome.success, only.outcome.turns) == (success, 2)


def test_a_success_on_the_last_step_is_terminated(renderer):
    kwargs = {"limit": 3, "goal": 3}
    (segments,) = play(renderer, rollout={"n_env": 1, "e_len": 3}, environment={"kwargs": kwargs})
    (only,) = segments
    assert (only.end, only.final_prompt_ids) == ("terminated", ())
    assert [turn.reward for turn in only.turns] == [0.0, 0.0, 1.0]


# -- rewards


class WonByDefault(Counter):
    default_action = "win"


def test_an_invalid_turn_that_wins_keeps_its_reward(renderer):
    (segments,) = play(renderer, ["I give up."], env=f"{__name__}:WonByDefault", rollout={"n_env": 1, "e_len": 1})
    (only,) = segments
    (turn,) = only.turns
    assert turn.action and (turn.action.status, turn.action.text) == ("invalid", "win")
    assert turn.reward == pytest.approx(0.9)
    assert only.end == "terminated"
    assert only.outcome and only.outcome.success is True
    assert only.outcome.episode_return == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("reward", "expected"),
    [("binary", [0.0, -0.5, 0.0, 1.0]), ("native", [0.25, -0.25, 0.25, 0.25])],
)
def test_rewards_are_binary_or_the_environment_s_own_less_the_penalty(renderer, reward, expected):
    environment = {"reward": reward, "invalid_penalty": 0.5}
    replies = say("add", "what?", "increase", "win")
    (segments,) = play(renderer, replies, environment=environment, rollout={"n_env": 1, "e_len": 4})
    (only,) = segments
    assert [turn.reward for turn in only.turns] == expected
    assert [turn.action.status for turn in only.turns if turn.action] == ["valid", "invalid", "translated", "valid"]
    assert only.outcome and only.outcome.episode_return == sum(expected)


def test_a_time_limit_is_no_success_and_pays_nothing(renderer):
    (segments,) = play(renderer, rollout={"n_env": 1, "e_len": 2}, environment={"kwargs": {"limit": 2}})
    (only,) = segments
    assert [turn.reward for turn in only.turns] == [0.0, 0.0]
    assert only.outcome and only.outcome.success is False


class Silent(Counter):
    """Does not tell whether it was solved."""

    def step(self, action: str):
        return *super().step(action)[:4], {}


def test_a_binary_reward_needs_a_verdict(renderer):
    with pytest.raises(ValueError, match=r"environment.reward=binary needs info\['success'\].*reward=native"):
        play(renderer, say("win"), env=f"{__name__}:Silent")
    (segments, *_) = play(renderer, say("win"), env=f"{__name__}:Silent", environment={"reward": "native"})
    assert all(one.outcome and one.outcome.success is None for one in segments)
    assert {turn.reward for one in segments for turn in one.turns} == {0.25}


# -- the same again


def local(tiny: Any) -> tuple[LocalEngine, Renderer]:
    model, tokenizer = tiny
    renderer = Renderer(tokenizer)
    return LocalEngine(model, renderer.stop_ids, nullcontext()), renderer


ANY = {"env": "helpers:AnyCounter", "parser": {"use": "helpers:AnyText"}}
MEMORIES = [{"use": "window", "turns": 2}, {"use": "full"}, {"use": "note", "question": "?"}]


def bare(segments: list[Segment]) -> list[Segment]:
    return [
        replace(one, turns=tuple(replace(t, generation=replace(t.generation, logprobs=())) for t in one.turns))
        for one in segments
    ]


def logprobs(segments: list[Segment]) -> list[float]:
    return [x for one in segments for turn in one.turns for x in turn.generation.logprobs]


@pytest.mark.parametrize("memory", MEMORIES, ids=lambda memory: memory["use"])
@pytest.mark.parametrize("workers", ["inline", "thread"])
def test_async_play_and_lockstep_play_give_the_same_segments(tiny, memory, workers):
    """In fp64, since who shares a pass with whom differs, and fp32 would round to more than the bound."""
    tiny[0].double()
    engine, renderer = local(tiny)
    played = []
    for mode in ("lockstep", "async"):
        config = play_config(
            **ANY,
            memory=memory,
            environment={"kwargs": {"limit": 3}, "workers": workers},
            rollout={"n_env": 4, "e_len": 4, "mode": mode},
        )
        collector = Collector(config, renderer)
        played.append([*collector.collect(engine), *collector.collect(engine)])
    lockstep, free = played
    assert bare(lockstep) == bare(free)
    assert logprobs(lockstep) == pytest.approx(logprobs(free), abs=1e-5)
    assert len({turn.generation.token_ids for one in free for turn in one.turns}) > 20


def test_the_same_seed_gives_the_same_segments_and_another_seed_others(tiny):
    engine, renderer = local(tiny)

    def collect(seed: int) -> list[Segment]:
        config = play_config(**ANY, seed=seed, environment={"kwargs": {"limit": 2}})
        engine.load({}, 0)  # as each step begins: what is kept of earlier prompts changes the last bit
        collector = Collector(config, renderer)
        return [*collector.collect(engine), *collector.collect(engine)]

    assert collect(0) == collect(0)
    assert not {t.generation.token_ids for s in collect(0) for t in s.turns} & {
        t.generation.token_ids for s in collect(1) for t in s.turns if len(t.generation.token_ids) > 2
    }


def test_no_two_replies_are_sampled_with_the_same_seed(renderer):
    config = play_config(environment={"kwargs": {"limit": 2}}, memory={"use": "note"})
    engine, collector = Scripted(renderer), Collector(config, renderer)
    for _ in range(3):
        collector.collect(engine)
    assert len({sampling.seed for sampling in engine.samplings}) == len(engine.samplings) > 18


def test_replies_are_sampled_as_the_configuration_says(renderer):
    rollout = {"max_reply_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 3}
    engine, collector = Scripted(renderer), Collector(play_config(rollout=rollout), renderer)
    collector.collect(engine)
    seen = {(s.max_tokens, s.temperature, s.top_p, s.top_k) for s in engine.samplings}
    assert seen == {(7, 0.5, 0.9, 3)}


# -- environments that fail


class Broken(Counter):
    """Goes wrong as it is told, at a step of the environments with the numbers that are told."""

    action_space = gymnasium.spaces.Text(1000)
    made = 0
    release = threading.Event()

    def __init__(self, how: str, at: int, which: tuple[int, ...] = (0,), limit: int = 1_000_000):
        super().__init__(limit)
        self.how, self.at = how, at
        self.broken = type(self).made in which
        type(self).made += 1

    def reset(self, *, seed: int | None = None, options: Any = None):
        answer = super().reset(seed=seed)
        return self.go_wrong(answer) if self.broken and self.at == 0 else answer

    def step(self, action: str):
        answer = super().step(action)
        return self.go_wrong(answer) if self.broken and self.at == self.steps else answer

    def go_wrong(self, answer: Any) -> Any:
        observation, *rest = answer
        if self.how == "raise":
            raise RuntimeError("the network is down")
        if self.how == "time out":
            raise TimeoutError("the network is slow")
        if self.how == "hang":
            self.release.wait(60)
        if self.how in ("nan", "inf", "words", "nothing"):
            reward: Any = {"nan": math.nan, "inf": math.inf, "words": "much", "nothing": None}[self.how]
            return observation, reward, *rest[1:]
        return {
            "short": (observation, *rest[:-1]),
            "none": None,
            "list": list(answer),
            "number": (7, *rest),
            "no text": ({"image": "x"}, *rest),
            "bytes": ({"text": b"x"}, *rest),
            "info": (*answer[:-1], "success"),
        }.get(self.how, answer)


@pytest.fixture(autouse=True)
def no_environment_was_made() -> Iterator[None]:
    Broken.made = 0
    Broken.release = threading.Event()
    yield
    Broken.release.set()


STEPS = [
    "raise",
    "time out",
    "nan",
    "inf",
    "words",
    "nothing",
    "short",
    "none",
    "list",
    "number",
    "no text",
    "bytes",
    "info",
]
RESETS = ["raise", "short", "none", "list", "number", "no text", "bytes"]


def broken(how: str, at: int, which: tuple[int, ...] = (0,), n_env: int = 1, e_len: int = 4, **environment: Any):
    environment = {"kwargs": {"how": how, "at": at, "which": list(which)}, **environment}
    return play_config(f"{__name__}:Broken", environment=environment, rollout={"n_env": n_env, "e_len": e_len})


@pytest.mark.parametrize("workers", ["inline", "thread"])
@pytest.mark.parametrize(("how", "at"), [*((how, 3) for how in STEPS), *((how, 0) for how in RESETS)])
def test_a_failed_episode_is_dropped_and_counted_and_the_batch_is_full(renderer, how, at, workers):
    collector = Collector(broken(how, at, n_env=2, workers=workers), renderer)
    segments = collector.collect(Scripted(renderer))
    assert [(one.slot, one.episode, len(one.turns), one.end) for one in segments] == [
        (0, 1, 4, "cut"),
        (1, 0, 4, "cut"),
    ]
    assert [step_of(turn) for turn in segments[0].turns] == [0, 1, 2, 3]
    assert (collector.tally.failures, collector.tally.dropped_turns) == (1, max(0, at - 1))
    assert "Broken) failed: " in collector.tally.last_failure
    assert ("(test_rollout.py, line " in collector.tally.last_failure) == (how in ("raise", "time out"))
    assert Broken.made == 3  # a fresh one for the broken one


@pytest.mark.parametrize("workers", ["inline", "thread"])
@pytest.mark.parametrize("at", [0, 1, 3])
def test_an_elastic_batch_is_full_whoever_fails(renderer, at, workers):
    config = broken("raise", at, (0, 2, 3), n_env=3, workers=workers)
    config.rollout.mode = "elastic"
    collector = Collector(config, renderer)
    for _ in range(3):
        segments = collector.collect(Scripted(renderer))
        assert sum(len(acted(segments, slot)) for slot in range(3)) == 12


def test_a_batch_that_has_room_again_goes_on(renderer):
    """As when another slot's episode fails, right after this one found the batch full."""
    collector = Collector(play_config(rollout={"n_env": 1, "e_len": 4}), renderer)
    slot, asked = collector.slots[0], 0

    def full() -> bool:
        nonlocal asked
        asked += 1
        return slot.share.acted >= 4 or asked == 2  # first by the loop, then by the reply that is asked for

    async def go_on() -> None:
        await asyncio.wait_for(slot.play_until(Scripted(renderer), full), 10)

    collector._runner.run(go_on())
    assert len(acted(slot.cut(), 0)) == 4
    collector.close()


def test_a_call_that_hangs_is_given_up(renderer):
    collector = Collector(broken("hang", 2, n_env=2, workers="thread", timeout_s=0.5), renderer)
    started = time.perf_counter()
    segments = collector.collect(Scripted(renderer))
    assert time.perf_counter() - started < 30
    assert [(one.slot, one.episode, len(one.turns)) for one in segments] == [(0, 1, 4), (1, 0, 4)]
    assert (collector.tally.failures, collector.tally.dropped_turns) == (1, 1)
    assert "took longer than environment.timeout_s=0.5" in collector.tally.last_failure
    Broken.release.set()  # what the hung call answers now is heard by nobody
    assert [step_of(turn) for turn in acted(collector.collect(Scripted(renderer)), 0)] == [4, 5, 6, 7]


def test_a_failure_takes_no_turns_of_batches_that_were_collected(renderer):
    collector = Collector(broken("raise", 6), renderer)
    engine = Scripted(renderer)
    first, second = collector.collect(engine), collector.collect(engine)
    assert [len(one.turns) for one in first] == [4]
    assert collector.tally.dropped_turns == 1
    assert [(one.episode, len(one.turns)) for one in second] == [(1, 4)]
    assert collector.collect(engine)[0].episode == 1
    assert (collector.tally.failures, collector.tally.last_failure) == (0, "")  # a tally is of one batch


def test_a_failure_takes_no_episode_that_ended_before_it(renderer):
    kwargs = {"how": "raise", "at": 2, "which": [0], "limit": 2}
    config = play_config(f"{__name__}:Broken", environment={"kwargs": kwargs}, rollout={"n_env": 1, "e_len": 4})
    collector = Collector(config, renderer)
    segments = collector.collect(Scripted(renderer))
    assert [(one.episode, len(one.turns), one.end) for one in segments] == [(1, 2, "truncated"), (2, 2, "truncated")]


def test_turns_that_a_memory_asked_for_are_dropped_with_their_episode(renderer):
    config = broken("raise", 2).model_copy(update={"memory": play_config(memory={"use": "note"}).memory})
    collector = Collector(config, renderer)
    segments = collector.collect(Scripted(renderer))
    assert [turn.of_memory for turn in segments[0].turns] == [False, True, False, True, False, True, False]
    assert collector.tally.dropped_turns == 2  # the first turn, and the question before the second


def test_a_level_that_fails_is_not_tried_again(renderer):
    collector = Collector(broken("raise", 2), renderer)
    seeds = [collector.slots[0]._levels(number).seed for number in range(2)]
    (segment,) = collector.collect(Scripted(renderer))
    assert segment.turns[0].observation.text.startswith(f"E{seeds[1] % 100_000} ")
    assert seeds[0] != seeds[1]


@pytest.mark.parametrize(
    ("how", "at", "workers"), [("raise", 0, "inline"), ("nan", 1, "inline"), ("raise", 1, "thread")]
)
def test_failures_in_a_row_end_the_run(renderer, how, at, workers):
    collector = Collector(broken(how, at, tuple(range(9)), workers=workers, max_failures=3), renderer)
    with pytest.raises(ValueError, match=r"Broken.*failed: .*3 times in a row.*environment.max_failures"):
        collector.collect(Scripted(renderer))
    assert Broken.made == 3


class Uneven(Scripted):
    """Answers some a little later than others."""

    async def generate(self, prompt_ids: Any, sampling: Any, request_id: str = ""):
        for _ in range(len(self.prompts) % 6):
            await asyncio.sleep(0)
        return await super().generate(prompt_ids, sampling, request_id)


def test_many_slots_that_fail_together_are_one_mistake(renderer, caplog):
    """And nothing else is said: asyncio complains of errors that nobody heard of."""
    collector = Collector(broken("raise", 1, tuple(range(99)), n_env=6, max_failures=3), renderer)
    with pytest.raises(ValueError, match="3 times in a row"):
        collector.collect(Uneven(renderer))
    collector.close()
    del collector
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


def test_failures_with_turns_between_them_do_not_end_the_run(renderer):
    """Five environments one after the other fail at their second step; the sixth is sound."""
    collector = Collector(broken("raise", 2, tuple(range(5)), max_failures=6), renderer)
    (segment,) = collector.collect(Scripted(renderer))
    assert (segment.episode, len(segment.turns)) == (5, 4)
    assert (collector.tally.failures, collector.tally.dropped_turns) == (5, 5)


def test_an_environment_that_never_lives_through_a_batch_ends_the_run(renderer):
    """It plays one turn and fails, again and again: no batch would ever be full."""

    def patience(_: str, number: int) -> str:
        assert number < 100, "this would go on forever"
        return "ACTION: add"

    collector = Collector(broken("raise", 2, tuple(range(1000))), renderer)
    with pytest.raises(ValueError, match="in a row"):
        collector.collect(Scripted(renderer, patience))


class Translating(Broken):
    """Understands what it was shown, so only the environment that is played can translate."""

    def translate(self, said: str) -> str | None:
        return "wait" if said == f"wait at {self.steps}" else None


def test_near_misses_are_translated_by_the_environment_that_is_played(renderer):
    config = broken("raise", 2, e_len=3)
    config.environment.id = f"{__name__}:Translating"

    def reply(prompt: str, _: int) -> str:
        steps = re.findall(r"Now (\d+)", prompt)
        return f"ACTION: wait at {steps[-1]}"

    (segment,) = Collector(config, renderer).collect(Scripted(renderer, reply))
    assert [turn.action.status for turn in segment.turns if turn.action] == ["translated"] * 3


class Pausing(Counter):
    def __init__(self, pause: float = 0.0):
        super().__init__()
        self.pause = pause

    def step(self, action: str):
        time.sleep(self.pause)
        return super().step(action)


class Heavy(Scripted):
    """A model of which one forward pass takes longer than an environment may."""

    async def generate(self, prompt_ids, sampling, request_id=""):
        if len(self.prompts) == 2:
            time.sleep(0.5)
        return await super().generate(prompt_ids, sampling)


def test_a_slow_model_does_not_make_an_environment_late(renderer):
    """Slot 0 asks the model again while the environment of slot 1 is still busy."""
    environment = {"workers": "thread", "timeout_s": 0.3, "tasks": {"quick": {}, "slow": {"pause": 0.05}}}
    config = play_config(f"{__name__}:Pausing", environment=environment, rollout={"n_env": 2, "e_len": 2})
    collector = Collector(config, renderer)
    collector.collect(Heavy(renderer))
    assert (collector.tally.failures, collector.tally.last_failure) == (0, "")


class Addressed(Scripted):
    """Hears which requests belong together."""

    async def generate(self, prompt_ids, sampling, request_id=""):
        prompt = self.renderer.tokenizer.decode(list(prompt_ids))
        self.heard = [*getattr(self, "heard", []), (request_id, prompt.split("Count in ")[1][:6])]
        return await super().generate(prompt_ids, sampling, request_id)


def test_requests_share_an_id_when_they_are_of_one_episode(renderer):
    environment = {"kwargs": {"limit": 2}}
    config = play_config(memory={"use": "note", "question": "?"}, environment=environment, rollout={"e_len": 6})
    engine = Addressed(renderer)
    Collector(config, renderer).collect(engine)
    ids, episodes = ({pair[place] for pair in engine.heard} for place in (0, 1))
    assert len(ids) == len(episodes) == len(set(engine.heard)) == 6  # two slots, three episodes each


class Faulty(Scripted):
    async def generate(self, prompt_ids, sampling, request_id=""):
        await asyncio.sleep(0)
        raise ArithmeticError("no more memory")


@pytest.mark.parametrize("mode", ["async", "lockstep"])
def test_an_error_of_the_engine_is_raised_as_it_is(renderer, mode):
    collector = Collector(play_config(rollout={"mode": mode}), renderer)
    with pytest.raises(ArithmeticError, match="no more memory"):
        collector.collect(Faulty(renderer))


# -- save and go on


@pytest.mark.parametrize("memory", MEMORIES, ids=lambda memory: memory["use"])
@pytest.mark.parametrize("limit", [2, 4, 100])
def test_a_restored_collector_goes_on_as_if_nothing_had_happened(tiny, memory, limit):
    """Batches of 3 turns: with a limit of 2 the batch that is saved ends within an episode, with 4 within another."""
    engine, renderer = local(tiny)
    config = play_config(**ANY, memory=memory, environment={"kwargs": {"limit": limit}}, log={"transcript_every": 2})
    steady = Collector(config, renderer)
    expected, kept = [], []
    for _ in range(4):
        engine.load({}, 0)  # as before every batch of a run: what the engine kept of the last one is forgotten
        expected.append(steady.collect(engine))
        kept.append(steady.tally.transcripts)

    collector = Collector(config, renderer)
    for number in range(4):
        saved = json.loads(json.dumps(collector.state()))
        collector = Collector(config, renderer)
        assert collector.restore(saved) == 0
        engine.load({}, 0)
        assert collector.collect(engine) == expected[number]
        assert collector.tally.transcripts == kept[number]


class Moody(Counter):
    """Not a function of its seed: no two episodes look the same."""

    resets = 0

    def reset(self, *, seed: int | None = None, options: Any = None):
        Moody.resets += 1
        return super().reset(seed=Moody.resets)


class Brief(Moody):
    """Cannot be played a second time."""

    def step(self, action: str):
        if Moody.resets > 2:
            raise RuntimeError("no more")
        return super().step(action)


@pytest.mark.parametrize("kind", ["Moody", "Brief"])
def test_an_environment_that_cannot_be_brought_back_begins_a_new_episode(renderer, kind):
    Moody.resets = 0
    config = play_config(f"{__name__}:{kind}", rollout={"n_env": 2, "e_len": 3})
    engine, collector = Scripted(renderer), Collector(config, renderer)
    before = collector.collect(engine)
    assert [one.episode for one in before] == [0, 0]
    restored = Collector(config, renderer)
    assert restored.restore(json.loads(json.dumps(collector.state()))) == 2
    Moody.resets = -100
    after = restored.collect(engine)
    assert [(one.episode, len(one.turns), step_of(one.turns[0])) for one in after] == [(1, 3, 0), (1, 3, 0)]


def test_slots_that_have_not_begun_are_restored_too(renderer):
    config = play_config()
    fresh, restored = Collector(config, renderer), Collector(config, renderer)
    assert restored.restore(json.loads(json.dumps(fresh.state()))) == 0
    engine = Scripted(renderer)
    assert restored.collect(engine) == fresh.collect(engine)


@pytest.mark.parametrize(
    ("memory", "kept"), [({"use": "window", "turns": 0}, 0), ({"use": "window", "turns": 2}, 2), ({"use": "note"}, 2)]
)
def test_turns_that_the_memory_does_not_read_are_not_kept(renderer, memory, kept):
    """So what is saved of a long episode stays small; of a note, the newest question is kept beside the turn."""
    collector = Collector(play_config(memory=memory, rollout={"e_len": 8}), renderer)
    collector.collect(Scripted(renderer))
    assert [len(slot["agent"]["past"]) for slot in collector.state()] == [kept, kept]
    assert [len(slot["agent"]["actions"]) for slot in collector.state()] == [8, 8]


# -- prompts that are too long


def shown_steps(prompt: str) -> list[int]:
    return [int(step) for step in re.findall(r"step (\d+) ", prompt)]


def long_config(limit: int, memory: Any = None, **rollout: Any):
    return play_config(
        environment={"kwargs": {"wordy": 100, "limit": limit}},
        memory=memory or {"use": "window", "turns": 4},
        parser={"cue": "Act."},
        rollout={"n_env": 1, "max_prompt_tokens": 700, **rollout},
    )


@pytest.mark.parametrize("memory", [{"use": "window", "turns": 4}, {"use": "full"}], ids=lambda memory: memory["use"])
def test_a_prompt_that_is_too_long_leaves_out_the_oldest_turns(renderer, memory):
    collector = Collector(long_config(50, memory, e_len=6), renderer)
    engine = Scripted(renderer)
    (segment,) = collector.collect(engine)
    shown = [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5]]
    assert [shown_steps(prompt) for prompt in engine.prompts] == shown
    for number, prompt in enumerate(engine.prompts):
        assert prompt.startswith("<|im_start|>system\nCount in E")
        assert f"Now {number}?\nAct.<|im_end|>" in prompt
    assert max(len(turn.prompt_ids) for turn in segment.turns) <= 700
    assert len(segment.final_prompt_ids) <= 700


def test_prompts_are_shortened_no_further_than_needed(renderer):
    """At exactly the length of the longest prompt nothing is left out; one token less, and one turn is."""
    engine = Scripted(renderer)
    (segment,) = Collector(long_config(50, max_prompt_tokens=4000, e_len=5), renderer).collect(engine)
    longest = len(segment.turns[-1].prompt_ids)
    for limit, shown in ((longest, [0, 1, 2, 3, 4]), (longest - 1, [1, 2, 3, 4])):
        again = Scripted(renderer)
        Collector(long_config(50, max_prompt_tokens=limit, e_len=5), renderer).collect(again)
        assert again.prompts[:4] == engine.prompts[:4]
        assert shown_steps(again.prompts[4]) == shown


class Hurried(Counter):
    """Now and then asks at length."""

    def _observe(self) -> Any:
        return super()._observe() | {"cue": "Now! " * (self.steps * 7 % 31)}


@dataclass(frozen=True)
class Tried(Window):
    """Notes how many turns it was given whenever it was asked for a prompt."""

    tries: ClassVar[list[int]] = []

    async def prompt(self, past: Sequence[Turn], index: int, observation: Observation, ask: Any) -> list[Message]:
        self.tries.append(len(past))
        return await super().prompt(past, index, observation, ask)


def test_what_a_long_episode_leaves_out_is_known_from_turn_to_turn(renderer):
    """As little as can be, by few tries each time and not by as many as there have been turns."""
    limit, turns = 700, 60
    config = play_config(
        f"{__name__}:Hurried",
        memory={"use": f"{__name__}:Tried", "turns": turns},
        rollout={"n_env": 1, "e_len": turns, "max_prompt_tokens": limit},
    )
    (segment,) = Collector(config, renderer).collect(Scripted(renderer))
    tries, memory = list(Tried.tries), Window(turns)

    def prompt(first: int, number: int) -> tuple[int, ...]:
        past, now = segment.turns[first:number], segment.turns[number].observation
        return renderer.prompt(asyncio.run(memory.prompt(past, number, now, never_asked)))

    fewest = [next(n for n in range(k + 1) if len(prompt(n, k)) <= limit) for k in range(turns)]
    assert [turn.prompt_ids for turn in segment.turns] == [prompt(n, k) for k, n in enumerate(fewest)]
    assert any(later < sooner for sooner, later in itertools.pairwise(fewest)) and fewest[-1] > turns / 2
    assert len(tries) < 4 * turns and max(tries) < turns / 2


async def never_asked(messages: list[Message]) -> str:
    raise AssertionError("a window asks nothing")


@pytest.mark.parametrize("memory", [{"use": "window", "turns": 4}, {"use": "note"}], ids=lambda memory: memory["use"])
def test_nothing_is_counted_where_nothing_was_shortened(renderer, memory):
    collector = Collector(long_config(50, memory, max_prompt_tokens=4000, e_len=5), renderer)
    collector.collect(Scripted(renderer))
    assert collector.tally.shortened_prompts == 0


@pytest.mark.parametrize(
    "limit",
    [
        6,
        50,
    ],
)
def test_turns_whose_prompt_was_shortened_are_counted(renderer, limit):
    collector = Collector(long_config(limit, {"use": "full"}, e_len=6), renderer)
    counts = []
    for _ in range(2):
        collector.collect(Scripted(renderer))
        counts.append(collector.tally.shortened_prompts)
    assert counts == ([2, 2] if limit == 6 else [2, 6])


def test_what_a_memory_asks_is_not_too_long_either(renderer):
    """Where its question does not fit, what is oldest is left out of it: here the note before."""
    engine = Scripted(renderer, lambda prompt, _: "word " * 30 if "in a few words" in prompt else "ACTION: add")
    collector = Collector(long_config(50, {"use": "note"}, max_prompt_tokens=390, e_len=8), renderer)
    (segment,) = collector.collect(engine)
    assert [turn.of_memory for turn in segment.turns] == [False, *[True, False] * 7]
    assert max(len(turn.prompt_ids) for turn in segment.turns) <= 390
    questions = [prompt for prompt in engine.prompts if "in a few words" in prompt]
    assert all("Your note: nothing" in question for question in questions)
    assert collector.tally.shortened_prompts == 6  # the first question had no note before it


class Growing(Counter):
    """Shows more at every step."""

    def _observe(self) -> Any:
        return super()._observe() | {"text": f"step {self.steps} " + "." * 40 * self.steps}


@pytest.mark.parametrize("at", [0, 3])
def test_an_observation_that_does_not_fit_is_a_mistake(renderer, at):
    """Whether or not there is a past that could be left out."""
    config = play_config(
        f"{__name__}:Growing",
        environment={"tasks": {"greedy": {}}},
        parser={"cue": "Act."},
        rollout={"n_env": 1, "e_len": 6, "max_prompt_tokens": 150 if at else 60},
    )
    engine = Scripted(renderer)
    with pytest.raises(ValueError, match=r"rollout.max_prompt_tokens is \d+, but .* of greedy alone take \d+ tokens"):
        Collector(config, renderer).collect(engine)
    assert len(engine.prompts) == at


# -- transcripts


@pytest.mark.parametrize(("n_env", "every"), [(1, 1), (1, 3), (2, 3), (3, 2)])
def test_every_so_many_episodes_are_kept_to_be_read(renderer, n_env, every):
    config = play_config(
        environment={"kwargs": {"limit": 2}}, rollout={"n_env": n_env, "e_len": 5}, log={"transcript_every": every}
    )
    collector, engine = Collector(config, renderer), Scripted(renderer, ["ACTION: increase"])
    kept = []
    for _ in range(4):
        collector.collect(engine)
        kept += collector.tally.transcripts
    numbers = {(one.episode, one.slot) for one in kept}
    assert (0, 0) in numbers and len(numbers) == len(kept) and (len(kept) == 10 * n_env) == (every == 1)
    for one in kept:
        assert one.task == "Counter"
        name = one.text.split()[2].rstrip(".")
        assert one.text.startswith(f"Count in {name}.\n\n-- turn 1\n{name} step 0 count 0\n>> ACTION: increase\n")
        assert "=> add (translated: 'increase')  reward 0\n" in one.text
        assert f"{name} step 1 count 1" in one.text
        assert one.text.endswith(f"{name} step 2 count 2\n\n== truncated: failure, return 0.00, 2 turns\n")


@pytest.mark.parametrize("every", [1, 2, 8, 50])
@pytest.mark.parametrize("count", [1, 8, 32, 100])
def test_whatever_is_kept_of_every_so_many_is_of_all_slots(count, every):
    """32 slots of two tasks, and one episode in 50: counted, none of the second task would be kept."""
    kept = [index for number in range(10 * every) for index in range(count) if _is_kept(index, number, every)]
    assert {*kept} == {*range(count)}
    assert len(kept) == pytest.approx(10 * count, abs=5 * (10 * count) ** 0.5)  # five standard deviations


# -- environments of other kinds


class Lamp(gymnasium.Env[str, int]):
    """Two numbered actions, and a plain text as its observation."""

    action_space: Any = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self.played: list[int] = []
        return "It is dark.", {}

    def step(self, action: int):
        self.played.append(action)
        return f"You did {self.played}.", float(action), len(self.played) == 3, False, {"success": action == 1}


@pytest.fixture
def lamp() -> Iterator[str]:
    gymnasium.register("turnwise/Lamp-v0", entry_point=f"{__name__}:Lamp", max_episode_steps=2)
    yield "turnwise/Lamp-v0"
    del gymnasium.registry["turnwise/Lamp-v0"]


@pytest.mark.parametrize("registered", [False, True])
def test_numbered_actions_are_given_names(renderer, lamp, registered):
    """A registered one is made with its wrappers: here, with its time limit."""
    environment = {"actions": ["turn off", "turn on"], "reward": "native", "instructions": "Make light."}
    (segments,) = play(
        renderer,
        say("Turn On", "turn off", "dance"),
        env=lamp if registered else f"{__name__}:Lamp",
        environment=environment,
        rollout={"n_env": 1, "e_len": 3},
    )
    turns = [turn for one in segments for turn in one.turns]
    assert [turn.action.text for turn in turns if turn.action] == ["turn on", "turn off", "turn off"]
    assert [turn.reward for turn in turns] == [1.0, 0.0, -0.1]
    assert [one.end for one in segments] == (["truncated", "cut"] if registered else ["terminated"])
    assert turns[1].observation.text == "You did [1]."
    assert turns[0].observation.instructions == "Make light."


class Camera(gymnasium.Env[Any, str]):
    """Shows nothing but pictures."""

    actions = ("look",)

    def __init__(self, named: bool = False):
        picture = gymnasium.spaces.Box(0, 255, (4, 4, 3))
        self.observation_space = gymnasium.spaces.Dict({"image": picture}) if named else picture


class Careless(gymnasium.Env[str, str]):
    actions = "look"


class Numbered(gymnasium.Env[str, str]):
    actions = (1, 2)


class Twice(gymnasium.Env[str, str]):
    actions = ("left", "right", "left")


class Painted(gymnasium.ObservationWrapper[Any, Any, Any]):
    """A lamp in other words, which knows more of it."""

    actions = ("darken", "light")
    default_action = "light"

    def __init__(self) -> None:
        super().__init__(Lamp())

    def observation(self, observation: Any) -> Any:
        return {"text": "painted \ud800"}

    def translate(self, said: str) -> str | None:
        return "darken" if said == "dim" else None


def test_a_wrapper_speaks_for_what_it_wraps(renderer):
    environment = {"reward": "native"}
    (segments,) = play(renderer, say("dim"), env=f"{__name__}:Painted", environment=environment)
    turns = [turn for one in segments for turn in one.turns]
    assert {(turn.observation.text, turn.action.text) for turn in turns if turn.action} == {("painted ?", "darken")}
    (segments,) = play(renderer, say("?"), env=f"{__name__}:Painted", environment=environment)
    assert {turn.action.text for one in segments for turn in one.turns if turn.action} == {"light"}


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"actions": ["turn on"]}, "environment.actions names 1 actions, but .* has 2; name each of them in order"),
        ({}, "environment.actions names 0 actions"),
        ({"actions": ["on", "off"], "default_action": "of"}, "default_action is 'of'; it must be one of on, off"),
        ({"id": "helpers:Ladder", "actions": ["jump"]}, r"actions is \['jump'\], but helpers:Ladder has its own"),
        ({"id": "helpers:Ladder", "default_action": "up"}, "default_action is 'up', but helpers:Ladder has its own"),
        ({"id": "turnwise/Lamp-v7"}, "environment.id is 'turnwise/Lamp-v7', which Gymnasium does not know"),
        ({"id": f"{__name__}:Torch"}, "has no Torch"),
        ({"kwargs": {"colour": "red"}}, "does not take the arguments {'colour': 'red'}"),
        ({"id": f"{__name__}:Camera"}, ":Camera', which shows images or numbers alone; wrap it .* text"),
        ({"id": f"{__name__}:Camera", "kwargs": {"named": True}}, "which shows images or numbers alone"),
        ({"id": "FrozenLake-v1", "actions": list("abcd")}, "which shows images or numbers alone"),
        ({"id": f"{__name__}:Careless"}, "the actions of .*:Careless are 'look'; they must be a list of texts"),
        ({"id": f"{__name__}:Numbered"}, r"the actions of .*:Numbered are \(1, 2\); they must be texts, each one once"),
        ({"id": f"{__name__}:Twice"}, "the actions of .*:Twice are .*; they must be texts, each one once"),
    ],
)
def test_an_environment_that_does_not_fit_is_a_mistake(renderer, environment, message):
    with pytest.raises(ValueError, match=message):
        Collector(play_config(f"{__name__}:Lamp", environment=environment), renderer)


def test_a_registered_environment_may_name_the_module_that_registers_it(renderer, lamp):
    environment = {"actions": ["turn off", "turn on"], "reward": "native"}
    (segments,) = play(renderer, say("turn on"), env=f"{__name__}:{lamp}", environment=environment)
    assert [turn.reward for one in segments for turn in one.turns] == [1.0] * 6


class Sloppy(gymnasium.Env[str, str]):
    """Answers something that only looks like an answer."""

    def __init__(self, how: str):
        self.how = how

    def reset(self, *, seed: int | None = None, options: Any = None):
        return {"text": "hello"} if self.how == "bare" else ("hello", {})

    def step(self, action: str) -> Any:
        info: dict[str, Any] = {"success": "no" if self.how == "success" else np.bool_(True)}
        info |= {"figures": [1]} if self.how == "figures" else {}
        reward = "1" if self.how == "reward" else 1
        return "hello", reward, "no" if self.how == "ended" else 1, "" if self.how == "cut" else False, info


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("bare", r"its reset returned {'text': 'hello'} instead of \(observation, info\)"),
        ("reward", "its reward is '1', which is no finite number"),
        ("ended", "its terminated is 'no', which is neither True nor False"),
        ("cut", "its truncated is '', which is neither True nor False"),
        ("success", r"its info\['success'\] is 'no', which is neither True nor False"),
        ("figures", r"its info\['figures'\] is \[1\], not a dict of numbers by name"),
    ],
)
def test_what_only_looks_like_an_answer_is_a_failure(renderer, how, message):
    environment = {"kwargs": {"how": how}, "max_failures": 2}
    with pytest.raises(ValueError, match=message):
        play(renderer, env=f"{__name__}:Sloppy", environment=environment)


def test_numbers_and_numpy_say_yes_and_no_too(renderer):
    (segments,) = play(renderer, env=f"{__name__}:Sloppy", environment={"kwargs": {"how": ""}})
    assert {one.outcome.success for one in segments if one.outcome} == {True}


class Amnesic:
    """A memory that forgets what to answer."""

    span = 1

    def __init__(self, answer: Any = None):
        self.answer = answer

    async def prompt(self, *_: Any) -> Any:
        return self.answer


@pytest.mark.parametrize(
    "answer", [None, [], ["Go on."], [{"content": "Go on."}], [{"role": "user"}], [{"role": "alien", "content": ""}]]
)
def test_a_memory_that_answers_no_messages_is_a_mistake(renderer, answer):
    told = re.escape(f"memory: Amnesic answers with {answer!r}; let it be a list of messages")
    with pytest.raises(ValueError, match=told):
        play(renderer, memory={"use": f"{__name__}:Amnesic", "answer": answer})


class Searching(ThinkAct):
    """Answers with what `str.find` says of a reply without a marker, or with a text."""

    def parse(self, text: str) -> Any:
        return text if text == "yes" else replace(super().parse(text), start=text.find("ACTION"))


@pytest.mark.parametrize("reply", ["yes", "no"])
def test_a_parser_that_answers_otherwise_than_it_is_to_is_a_mistake(renderer, reply):
    with pytest.raises(ValueError, match=f"parser: Searching answers with .*; .* here from 0 to {len(reply)}"):
        play(renderer, [reply], parser=f"{__name__}:Searching")


class Eager:
    """A memory that asks, and thinks that nothing can go wrong."""

    span = 1

    async def prompt(self, past: Any, index: int, observation: Observation, ask: Any) -> list[Any]:
        with contextlib.suppress(Exception):
            await ask([{"role": "user", "content": "What now?"}])
        return [{"role": "user", "content": observation.text}]


def test_a_memory_that_catches_everything_is_bootstrapped_from_its_question_too(renderer):
    (segments,) = play(renderer, memory={"use": f"{__name__}:Eager"})
    cut = [one for one in segments if one.end != "terminated"]
    assert cut and all("What now?" in renderer.text(one.final_prompt_ids) for one in cut)


class Spaceless(gymnasium.Env[str, str]):
    """All that the protocol asks for."""

    def reset(self, *, seed: int | None = None, options: Any = None):
        return "Say something.", {}

    def step(self, action: str):
        return f"You said {action}.", 1.0, True, False, {}


def test_an_environment_of_texts_needs_no_space_of_actions(renderer):
    (segments,) = play(renderer, say("hello"), env=f"{__name__}:Spaceless", environment={"reward": "native"})
    assert [turn.action.text for one in segments for turn in one.turns if turn.action] == ["hello"] * 6


class Miser(Spaceless):
    """Counts its coins, or says nonsense of them."""

    def __init__(self, coins: float = 3.0):
        self.coins = coins

    def step(self, action: str):
        return "Over.", 1.0, True, False, {"figures": {"coins": self.coins}}


def test_what_an_environment_counts_is_told_at_its_end(renderer):
    (segments,) = play(renderer, say("hello"), env=f"{__name__}:Miser", environment={"reward": "native"})
    assert {tuple(one.outcome.figures.items()) for one in segments if one.outcome} == {(("environment/coins", 3.0),)}
    wrong = {"reward": "native", "kwargs": {"coins": float("nan")}}
    with pytest.raises(ValueError, match=r"its info\['figures'\]\['coins'\] is nan"):
        play(renderer, say("hello"), env=f"{__name__}:Miser", environment=wrong)


class Second(Lamp):
    """Its numbers begin with 1, so its lamp goes on at 2."""

    action_space = gymnasium.spaces.Discrete(2, start=1)  # type: ignore[assignment]

    def step(self, action: int):
        assert self.action_space.contains(action)
        return super().step(action - 1)


def test_numbers_of_actions_may_begin_anywhere(renderer):
    environment = {"actions": ["turn off", "turn on"], "reward": "native"}
    rollout = {"n_env": 1, "e_len": 3}
    (segments,) = play(renderer, say("turn on"), env=f"{__name__}:Second", environment=environment, rollout=rollout)
    assert [turn.reward for one in segments for turn in one.turns] == [1.0] * 3


class Enumerated(Lamp):
    """As in MiniGrid, `actions` is not a list of texts."""

    actions = (0, 1)


def test_names_in_the_configuration_stand_for_actions_that_are_no_text(renderer):
    environment = {"actions": ["turn off", "turn on"], "reward": "native"}
    (segments,) = play(
        renderer,
        say("turn on"),
        env=f"{__name__}:Enumerated",
        environment=environment,
        rollout={"n_env": 1, "e_len": 3},
    )
    assert [turn.reward for turn in segments[0].turns] == [1.0] * 3


# -- whole episodes, and groups


@pytest.mark.parametrize("episodes", [1, 2])
def test_a_batch_may_be_of_whole_episodes(renderer, episodes):
    tasks = {"short": {"limit": 1}, "long": {"limit": 9}}
    rollout = {"n_env": 3, "episodes": episodes}
    first, second = play(renderer, batches=2, environment={"tasks": tasks}, rollout=rollout)
    for number, segments in enumerate((first, second)):
        assert [one.slot for one in segments] == [slot for slot in range(3) for _ in range(episodes)]
        assert [len(one.turns) for one in segments] == [n for n in (1, 9, 1) for _ in range(episodes)]
        assert {one.end for one in segments} == {"truncated"}
        assert [one.episode for one in segments] == [*range(number * episodes, (number + 1) * episodes)] * 3


def test_the_slots_of_a_group_play_the_same_levels_with_luck_of_their_own(tiny):
    engine, renderer = local(tiny)
    tasks = {"one": {"limit": 2}, "other": {"limit": 2}}
    config = play_config(**ANY, environment={"tasks": tasks}, rollout={"n_env": 6, "episodes": 2, "group": 3})
    collector = Collector(config, renderer)
    segments = collector.collect(engine)
    levels = [[one.turns[0].prompt_ids for one in segments if one.slot == slot] for slot in range(6)]
    assert levels[0] == levels[1] == levels[2] != levels[3] == levels[4] == levels[5]
    assert levels[0][0] != levels[0][1]
    assert [one.task for one in segments] == ["one"] * 6 + ["other"] * 6
    assert len({tuple(turn.generation.token_ids for turn in one.turns) for one in segments}) == len(segments)


def test_a_group_goes_on_together_after_a_failure(renderer):
    kwargs = {"how": "raise", "at": 1, "which": [0], "limit": 2}
    config = play_config(
        f"{__name__}:Broken", environment={"kwargs": kwargs}, rollout={"n_env": 3, "episodes": 1, "group": 3}
    )
    collector, engine = Collector(config, renderer), Scripted(renderer)
    first, second = collector.collect(engine), collector.collect(engine)
    assert [one.episode for one in first] == [1, 0, 0]
    assert [one.episode for one in second] == [2, 2, 2]
    assert len({one.seed for one in second}) == 1


def test_groups_that_teach_nothing_are_left_out(renderer):
    made = play_config(rollout={"n_env": 4, "episodes": 1, "group": 2, "filter_groups": True})
    replies = ["ACTION: win", "ACTION: win", "ACTION: win", "ACTION: lose"]
    collector = Collector(made, renderer)
    segments = collector.collect(Scripted(renderer, replies))
    assert len(segments) == 2 and collector.tally.useless_groups == 1
    assert len({one.seed for one in segments}) == 1
    won = [one.outcome.success for one in collector.tally.played if one.outcome]
    assert won == [True, True, True, False]  # what is told of the batch is told of all
    with pytest.raises(ValueError, match=r"in 10 batches no group had episodes of different returns"):
        collector.collect(Scripted(renderer, ["ACTION: win"]))


# -- agents that play otherwise


class Reader:
    """Asks on, each time about all that was said; a question to itself comes first."""

    def __init__(self, setting: Any, turns: int = 5, shift: bool = False):
        self.codec, self.turns, self.shift = setting.codec, turns, shift
        self.runs = 0

    async def run(self, session: Any) -> Ending:
        self.runs += 1
        messages: list[Message] = [{"role": "user", "content": f"E{session.seed}.{self.runs * self.shift}"}]
        for _ in range(self.turns):
            prompt = self.codec.prompt(messages)
            reply = await session.generate(prompt)
            text = self.codec.text(reply.token_ids)
            session.record(
                Turn(Observation(""), prompt, reply, Action(text, "valid", text, "", 0), 0, 0.5, *[text] * 3)
            )
            session.write(text)
            messages += [
                {"role": "assistant", "content": text, "token_ids": reply.token_ids},
                {"role": "user", "content": "And?"},
            ]
        return Ending(self.codec.prompt(messages), True)


def reading(**agent: Any) -> Any:
    agent = {"use": f"{__name__}:Reader", **agent}
    return play_config(agent=agent, rollout={"n_env": 3, "e_len": 4}, log={"transcript_every": 1})


def test_an_agent_of_any_kind_plays_through_batches(tiny):
    engine, renderer = local(tiny)
    collector = Collector(reading(), renderer)
    first, second = collector.collect(engine), collector.collect(engine)
    assert [(one.episode, one.end, len(one.turns)) for one in first] == [(0, "cut", 4)] * 3
    assert [(one.episode, one.end, len(one.turns)) for one in second] == [(0, "truncated", 1), (1, "cut", 3)] * 3
    assert [one.final_prompt_ids for one in first] == [one.turns[0].prompt_ids for one in second[::2]]
    assert {one.outcome.episode_return for one in second if one.outcome} == {2.5}
    assert [slot.agent.runs for slot in collector.slots] == [2, 2, 2]  # type: ignore[attr-defined]


def test_an_agent_of_any_kind_is_brought_back_by_the_replies_that_it_got(tiny):
    engine, renderer = local(tiny)
    steady, collector = Collector(reading(), renderer), Collector(reading(), renderer)
    for _ in range(4):
        engine.load({}, 0)
        expected = steady.collect(engine)
        saved = json.loads(json.dumps(collector.state()))
        collector = Collector(reading(), renderer)
        assert collector.restore(saved) == 0
        engine.load({}, 0)
        assert collector.collect(engine) == expected
        assert collector.tally.transcripts == steady.tally.transcripts
        assert collector.tally.failures == 0


class Obedient(Scripted):
    """Says nothing while it is paused."""

    paused = False

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    async def generate(self, prompt_ids: Any, sampling: Any, request_id: str = "") -> Generation:
        while self.paused:
            await asyncio.sleep(0)
        return await super().generate(prompt_ids, sampling, request_id)


class Working(Reader):
    """Has a tool at work after each reply, in one slot for long, and is paid at the end."""

    async def run(self, session: Any) -> Ending:
        for number in range(3):
            prompt = self.codec.prompt([{"role": "user", "content": f"{session.name} {number}"}])
            reply = await session.generate(prompt)
            text = self.codec.text(reply.token_ids)
            action = Action(text, "valid", text, "", 0)
            session.record(Turn(Observation(""), prompt, reply, action, 0, 0.0, text, text, text))
            for _ in range(40 if "/0/" in session.name else 0):
                await asyncio.sleep(0)
        session.reward(1.0)
        return Ending(())


@pytest.mark.parametrize(
    "tree",
    [
        {"agent": {"use": f"{__name__}:Working"}},
        {"environment": {"kwargs": {"limit": 3}}},
        {"environment": {"kwargs": {"limit": 3}}, "memory": {"use": "note"}},
    ],
    ids=["agent", "gym", "note"],
)
@pytest.mark.parametrize("killed", range(14))
def test_no_turn_of_an_elastic_run_is_lost_by_a_crash_and_none_is_there_twice(renderer, tree, killed):
    config = play_config(**tree, rollout={"n_env": 2, "e_len": 2, "mode": "elastic"})
    engine, collector = Obedient(renderer), Collector(config, renderer)
    turns: dict[Any, list[Turn]] = defaultdict(list)
    ended = 0
    for number in range(24):
        for one in collector.collect(engine):
            mine = turns[one.slot, one.episode]
            mine += [turn for turn in one.turns if not turn.of_memory]
            if one.outcome:
                ended += 1
                assert len(mine) == one.outcome.turns == 3
                assert sum(turn.reward for turn in mine) == one.outcome.episode_return
        if number == killed:
            saved = json.loads(json.dumps(collector.state()))
            collector.close()
            engine, collector = Obedient(renderer), Collector(config, renderer)
            assert collector.restore(saved) == 0
    collector.close()
    assert ended > 20


class Remote(Window):
    """Takes long over the first prompt, where that is said."""

    waits: ClassVar[int] = 0

    async def prompt(self, *given: Any) -> list[Message]:
        waits, Remote.waits = Remote.waits, 0
        for _ in range(waits):
            await asyncio.sleep(0)
        return await super().prompt(*given)


def test_no_restored_turn_is_cut_off_before_it_is_known_what_follows(renderer):
    config = play_config(memory={"use": f"{__name__}:Remote"}, rollout={"n_env": 3, "e_len": 4, "mode": "elastic"})
    engine = Obedient(renderer)
    with closing(Collector(config, renderer)) as collector:
        collector.collect(engine)
        saved = json.loads(json.dumps(collector.state()))
    assert [len(slot["share"]["turns"]) for slot in saved] == [1, 1, 0]
    with closing(Collector(config, renderer)) as collector:
        assert collector.restore(saved) == 0
        Remote.waits = 40
        segments = [one for _ in range(6) for one in collector.collect(engine)]
    assert all(one.final_prompt_ids for one in segments)
    steps, first = [step_of(turn) for turn in acted(segments, 0)], len(saved[0]["agent"]["actions"]) - 1
    assert steps and steps == list(range(first, first + len(steps)))


def test_an_agent_that_asks_otherwise_the_second_time_plays_its_episode_anew(renderer):
    collector = Collector(reading(shift=True), renderer)
    engine = Scripted(renderer, ["yes"])
    collector.collect(engine)
    saved = json.loads(json.dumps(collector.state()))
    restored = Collector(reading(shift=True), renderer)
    for slot in restored.slots:
        slot.agent.runs = 5  # type: ignore[attr-defined]
    restored.restore(saved)
    first, second = restored.collect(engine), restored.collect(engine)
    assert [(one.episode, len(one.turns)) for one in first] == [(0, 4)] * 3
    assert [(one.episode, one.outcome and one.outcome.turns) for one in second][::2] == [(0, 5)] * 3
    assert restored.tally.failures == 0


def test_an_agent_that_asks_side_by_side_is_brought_back(renderer):
    """One of its branches asks on before the other has claimed what it was told."""
    config = play_config(agent={"use": f"{__name__}:Twofold"}, rollout={"n_env": 1, "e_len": 2})
    engine = Scripted(renderer, ["yes"])
    with closing(Collector(config, renderer)) as collector:
        before = collector.collect(engine)
        saved = json.loads(json.dumps(collector.state()))
    with closing(Collector(config, renderer)) as collector:
        assert collector.restore(saved) == 0
        failures, after = 0, []
        for _ in range(5):
            after += collector.collect(engine)
            failures += collector.tally.failures
    assert failures == 0
    assert sum(len(one.turns) for one in [*before, *after] if one.episode == 0) == 10


class Greedy(Reader):
    """Pays itself what is no number."""

    async def run(self, session: Any) -> Ending:
        ending = await super().run(session)
        session.reward(math.nan)
        return ending


def test_a_reward_that_is_no_number_is_a_failure(renderer):
    with pytest.raises(ValueError, match=r"gave a reward of nan; it must be a finite number \(10 times in a row"):
        collector, engine = Collector(reading(use=f"{__name__}:Greedy", turns=1), renderer), Scripted(renderer, ["yes"])
        collector.collect(engine)


def test_an_episode_without_a_turn_is_a_failure(renderer):
    with pytest.raises(ValueError, match=r"ended an episode without a turn.*in a row"):
        Collector(reading(turns=0), renderer).collect(Scripted(renderer))


class Doubting(Reader):
    """Begins to ask something else first, and thinks better of it."""

    async def run(self, session: Any) -> Ending:
        doubt = asyncio.create_task(session.generate(self.codec.prompt([{"role": "user", "content": "Really?"}])))
        await asyncio.sleep(0)
        doubt.cancel()
        await asyncio.wait([doubt])
        return await super().run(session)


def test_replies_after_a_crash_have_the_luck_that_they_would_have_had(renderer):
    config, engine = reading(use=f"{__name__}:Doubting"), Scripted(renderer, ["yes"])
    steady, restored = Collector(config, renderer), Collector(config, renderer)
    steady.collect(engine)
    assert restored.restore(json.loads(json.dumps(steady.state()))) == 0
    seeds = []
    for collector in (steady, restored):
        engine.samplings.clear()
        collector.collect(engine)
        seeds.append([sampling.seed for sampling in engine.samplings])
    assert seeds[0] == seeds[1]


# -- calls that are given up while they wait for the next batch


class Hasty:
    """Gives up the first call that has to wait; then its first episode fails, or asks once more."""

    given_up: asyncio.Event  # only now does the other slot play on

    def __init__(self, setting: Any, fails: bool):
        self.codec, self.fails = setting.codec, fails

    async def run(self, session: Any) -> Ending:
        prompt = self.codec.prompt([{"role": "user", "content": session.name}])
        if session.name.endswith("/1/0"):
            await self.given_up.wait()
        for _ in range(2):
            await self._turn(session, prompt)
            if session.name.endswith("/0/0") and not self.given_up.is_set():
                await self._give_up(session, prompt)
        return Ending(prompt)

    async def _turn(self, session: Any, prompt: tuple[int, ...]) -> None:
        reply = await session.generate(prompt)
        text = self.codec.text(reply.token_ids)
        session.record(Turn(Observation(""), prompt, reply, Action(text, "valid", text, "", 0), 0, 0.5, *[text] * 3))

    async def _give_up(self, session: Any, prompt: tuple[int, ...]) -> None:
        waits = asyncio.create_task(session.generate(prompt))
        for _ in range(5):  # so that the slot has seen it wait
            await asyncio.sleep(0)
        waits.cancel()
        await asyncio.wait([waits])
        self.given_up.set()
        if self.fails:
            raise EpisodeFailure("it could not wait")


@pytest.mark.parametrize("mode", ["async", "lockstep"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_call_that_is_given_up_between_batches_harms_no_batch(renderer, mode, fails):
    Hasty.given_up = asyncio.Event()
    agent, rollout = {"use": f"{__name__}:Hasty", "fails": fails}, {"n_env": 2, "e_len": 1, "mode": mode}
    collector = Collector(play_config(agent=agent, rollout=rollout), renderer)
    engine = Scripted(renderer, ["yes"])
    batches = [collector.collect(engine) for _ in range(3)]
    assert Hasty.given_up.is_set()
    for segments in batches:
        assert [len(acted(segments, slot)) for slot in range(2)] == [1, 1]
    first = [segments[0].episode for segments in batches]
    assert first == ([1, 1, 2] if fails else [0, 0, 1])


# -- agents that ask for several replies at once


class Twofold:
    """Asks two questions on and on, side by side."""

    def __init__(self, setting: Any):
        self.codec = setting.codec

    async def run(self, session: Any) -> Ending:
        await asyncio.gather(*(self._ask(session, number) for number in range(2)))
        return Ending(())

    async def _ask(self, session: Any, number: int) -> None:
        for _ in range(5):
            prompt = self.codec.prompt([{"role": "user", "content": f"{session.name}.{number}"}])
            reply = await session.generate(prompt)
            text = self.codec.text(reply.token_ids)
            action = Action(text, "valid", text, "", 0)
            session.record(Turn(Observation(""), prompt, reply, action, 0, 0.5, *[text] * 3))


class Slow(Scripted):
    """Takes long to answer the second question."""

    under_way = 0

    async def generate(self, prompt_ids: Any, sampling: Any, request_id: str = "") -> Any:
        reply = await super().generate(prompt_ids, sampling, request_id)
        self.under_way += 1
        for _ in range(20 * (".1<" in self.renderer.tokenizer.decode(list(prompt_ids)))):
            await asyncio.sleep(0)
        self.under_way -= 1
        return reply


@pytest.mark.parametrize("mode", ["async", "lockstep"])
def test_no_reply_is_under_way_when_a_batch_ends(renderer, mode):
    agent, rollout = {"use": f"{__name__}:Twofold"}, {"n_env": 2, "e_len": 2, "mode": mode}
    with closing(Collector(play_config(agent=agent, rollout=rollout), renderer)) as collector:
        engine = Slow(renderer, ["yes"])
        for _ in range(4):
            segments = collector.collect(engine)
            assert engine.under_way == 0
            assert all(len(acted(segments, slot)) in (2, 3) for slot in range(2))


def test_an_elastic_batch_ends_whatever_is_under_way(renderer):
    agent, rollout = {"use": f"{__name__}:Twofold"}, {"n_env": 2, "e_len": 3, "mode": "elastic"}
    with closing(Collector(play_config(agent=agent, rollout=rollout), renderer)) as collector:
        engine, under_way = Slow(renderer, ["yes"]), 0
        for _ in range(6):
            segments = collector.collect(engine)
            assert 6 <= sum(len(one.turns) for one in segments) <= 7  # two may become sure at once
            under_way += engine.under_way > 0
        assert under_way


class Choosy:
    """Asks everything twice, and does without the first reply; then a tool is at work."""

    def __init__(self, setting: Any):
        self.codec = setting.codec

    async def run(self, session: Any) -> Ending:
        for number in range(7):
            prompt = self.codec.prompt([{"role": "user", "content": f"{session.name} {number}"}])
            await session.generate((*prompt, 0))
            reply = await session.generate(prompt)
            for _ in range(number):
                await asyncio.sleep(0)
            text = self.codec.text(reply.token_ids)
            action = Action(text, "valid", text, "", 0)
            session.record(Turn(Observation(""), prompt, reply, action, 0, 0.5, *[text] * 3))
        return Ending(())


@pytest.mark.parametrize("mode", ["async", "elastic"])
def test_no_batch_waits_for_a_reply_that_is_no_turn(renderer, mode):
    agent, rollout = {"use": f"{__name__}:Choosy"}, {"n_env": 2, "e_len": 2, "mode": mode}
    with closing(Collector(play_config(agent=agent, rollout=rollout), renderer)) as collector:
        engine = Scripted(renderer, ["yes"])
        segments = [one for _ in range(8) for one in collector.collect(engine)]
    cuts = 0
    for slot in range(2):
        for one, following in itertools.pairwise(one for one in segments if one.slot == slot):
            if one.end == "cut":
                cuts += 1
                assert following.turns[0].prompt_ids in (one.final_prompt_ids, one.final_prompt_ids[:-1])
    assert cuts > 5


class Forked(Twofold):
    """Does so as a group of tasks, in which a tool breaks in the first episode, or somebody has made a mistake."""

    def __init__(self, setting: Any, error: str = "EpisodeFailure"):
        super().__init__(setting)
        self.error = {"EpisodeFailure": EpisodeFailure, "ValueError": ValueError}[error]

    async def run(self, session: Any) -> Ending:
        async with asyncio.TaskGroup() as group:
            for number in range(2):
                group.create_task(self._ask(session, number))
        return Ending(())

    async def _ask(self, session: Any, number: int) -> None:
        await super()._ask(session, number)
        if session.name.endswith("/0"):
            raise self.error("the tool broke")


def test_a_failure_in_a_group_of_tasks_loses_the_episode_and_a_mistake_is_told_as_it_is(renderer):
    agent, rollout = {"use": f"{__name__}:Forked"}, {"n_env": 1, "e_len": 10}
    with closing(Collector(play_config(agent=agent, rollout=rollout), renderer)) as collector:
        assert [one.episode for one in collector.collect(Scripted(renderer, ["yes"]))] == [1]
        assert (collector.tally.failures, collector.tally.last_failure) == (1, "the tool broke")
    config = play_config(agent={**agent, "error": "ValueError"}, rollout=rollout)
    with closing(Collector(config, renderer)) as collector, pytest.raises(ValueError, match=r"^the tool broke$"):
        collector.collect(Scripted(renderer, ["yes"]))


class Secretive(Twofold):
    """Does not say how its episode ended."""

    async def run(self, session: Any) -> Any:
        await super().run(session)


def test_an_agent_that_tells_no_end_is_a_mistake(renderer):
    config = play_config(agent={"use": f"{__name__}:Secretive"}, rollout={"n_env": 1, "e_len": 20})
    told = r"^agent: Secretive ends with None; let run return an Ending of token ids"
    with closing(Collector(config, renderer)) as collector, pytest.raises(ValueError, match=told):
        collector.collect(Scripted(renderer, ["yes"]))


class Cancelled(Twofold):
    """Waits for a task that it has cancelled."""

    async def run(self, session: Any) -> Any:
        helper = asyncio.ensure_future(asyncio.sleep(9))
        asyncio.get_running_loop().call_soon(helper.cancel)
        await helper


def test_an_agent_that_is_cancelled_by_itself_fails(renderer):
    config = play_config(agent={"use": f"{__name__}:Cancelled"}, environment={"max_failures": 3})
    told = r"the agent of .* was cancelled by itself \(3 times in a row"
    with closing(Collector(config, renderer)) as collector, pytest.raises(ValueError, match=told):
        collector.collect(Scripted(renderer, ["yes"]))


class Fickle:
    """Fails after every third turn, before anybody knows how the episode goes on."""

    def __init__(self, setting: Any):
        self.codec = setting.codec

    async def run(self, session: Any) -> Ending:
        while True:
            prompt = self.codec.prompt([{"role": "user", "content": f"{session.name} {session.turns}"}])
            reply = await session.generate(prompt)
            text = self.codec.text(reply.token_ids)
            session.record(
                Turn(Observation(""), prompt, reply, Action(text, "valid", text, "", 0), 0, 0.5, *[text] * 3)
            )
            if session.turns == 3:
                await asyncio.sleep(0)
                raise EpisodeFailure("it had enough")


@pytest.mark.parametrize("n_env", [1, 2, 3])
def test_an_elastic_batch_has_no_turn_that_may_still_fail(renderer, n_env):
    rollout = {"n_env": n_env, "e_len": 2, "mode": "elastic"}
    with closing(Collector(play_config(agent={"use": f"{__name__}:Fickle"}, rollout=rollout), renderer)) as collector:
        dropped = 0
        for _ in range(12):
            segments = collector.collect(Scripted(renderer, ["yes"]))
            assert sum(len(one.turns) for one in segments) == 2 * n_env
            assert {one.end for one in segments} == {"cut"}
            assert all(one.final_prompt_ids for one in segments)
            dropped += collector.tally.dropped_turns
        assert dropped


class Headless(Twofold):
    """A branch fails in the first episode, and nobody tells the others."""

    async def run(self, session: Any) -> Ending:
        await asyncio.gather(super().run(session), self._fail(session))
        return Ending(())

    async def _fail(self, session: Any) -> None:
        while session.name.endswith("/0"):
            if session.turns == 3:
                raise EpisodeFailure("the tool broke")
            await asyncio.sleep(0)


@pytest.mark.parametrize("mode", ["async", "elastic"])
def test_what_is_left_of_an_episode_does_not_play_in_the_next_one(renderer, mode):
    agent, rollout = {"use": f"{__name__}:Headless"}, {"n_env": 1, "e_len": 4, "mode": mode}
    with closing(Collector(play_config(agent=agent, rollout=rollout), renderer)) as collector:
        engine = Slow(renderer, ["yes"])
        segments = [one for _ in range(4) for one in collector.collect(engine)]
    for one in segments:
        for turn in one.turns:
            assert f"/0/{one.episode}." in renderer.text(turn.prompt_ids)


def test_a_memory_is_asked_once_a_turn_where_its_note_does_not_fit(renderer):
    """The question fits, and the prompt with the answer does not."""
    rollout = {"n_env": 1, "e_len": 4, "max_prompt_tokens": 310, "max_reply_tokens": 200}
    with closing(Collector(play_config(memory={"use": "note"}, rollout=rollout), renderer)) as collector:
        replies = Scripted(renderer, lambda prompt, _: "n" * 150 if "Write down" in prompt else "ACTION: add")
        segments = collector.collect(replies)
        assert collector.tally.shortened_prompts == 3
    asked = [turn.of_memory for one in segments for turn in one.turns]
    assert asked == [False, True, False, True, False, True, False]


@pytest.mark.parametrize("branches", [2, 8])
def test_no_batch_that_fills_beside_another_is_lost_by_a_kill(renderer, branches):
    """Where an agent asks side by side, one pass of the engine may fill two batches."""
    agent, rollout = {"use": f"{__name__}:Many", "branches": branches}, {"n_env": 1, "e_len": 1, "mode": "elastic"}
    config = play_config(agent=agent, rollout=rollout, update={"minibatch": 1})
    whole = every_turn(config, renderer, killed=False)
    assert every_turn(config, renderer, killed=True) == whole
    assert len(set(whole)) == len(whole) == 3 * branches


class Many:
    """Asks several questions side by side, three times."""

    def __init__(self, setting: Any, branches: int):
        self.codec, self.branches = setting.codec, branches

    async def run(self, session: Any) -> Ending:
        await asyncio.gather(*(self._ask(session, number) for number in range(self.branches)))
        return Ending(())

    async def _ask(self, session: Any, number: int) -> None:
        for again in range(3):
            prompt = self.codec.prompt([{"role": "user", "content": f"{session.name}.{number}.{again}"}])
            reply = await session.generate(prompt)
            action = Action("", "valid", "", "", 0)
            session.record(Turn(Observation(""), prompt, reply, action, 0, 0.5, "", "", ""))


def every_turn(config: Config, renderer: Renderer, killed: bool) -> list[tuple[int, ...]]:
    """The prompts of the first episodes' turns, by a run that is killed and goes on after each batch, or is not."""
    prompts: list[tuple[int, ...]] = []
    collector, engine = Collector(config, renderer), Obedient(renderer, ["yes"])
    while not any(b"/1." in renderer.text(prompt).encode() for prompt in prompts):
        prompts += [turn.prompt_ids for one in collector.collect(engine) for turn in one.turns]
        if killed:
            saved = json.loads(json.dumps(collector.state()))
            collector.close()
            collector, engine = Collector(config, renderer), Obedient(renderer, ["yes"])
            assert collector.restore(saved) == 0
    collector.close()
    return sorted(prompt for prompt in prompts if "/0." in renderer.text(prompt))


class Forgetting(Window):
    """Cannot be reached when it is first asked for the second prompt of an episode."""

    failed: ClassVar[set[str]] = set()

    def __init__(self, how: str):
        super().__init__(1)
        self.how = how

    async def prompt(self, past: Any, turns: int, observation: Observation, *given: Any) -> list[Message]:
        if turns == 1 and self.how not in self.failed:
            self.failed.add(self.how)
            if self.how == "cancelled":
                raise asyncio.CancelledError
            raise EpisodeFailure("the index is down")
        return await super().prompt(past, turns, observation, *given)


@pytest.mark.parametrize("how", ["failed", "cancelled"])
def test_an_episode_that_the_memory_lost_is_not_gone_on_with_in_the_next(renderer, how):
    Forgetting.failed.clear()
    config = play_config(
        memory={"use": f"{__name__}:Forgetting", "how": how},
        environment={"kwargs": {"limit": 3}},
        rollout={"n_env": 1, "episodes": 1},
        update={"minibatch": 1},
    )
    with closing(Collector(config, renderer)) as collector:
        (one,) = collector.collect(Scripted(renderer))
    assert collector.tally.failures == 1
    assert (one.episode, len(one.turns), step_of(one.turns[0])) == (1, 3, 0)


class Numeric:
    """Ends with what NumPy computes."""

    def __init__(self, setting: Any):
        self.codec = setting.codec

    async def run(self, session: Any) -> Ending:
        prompt = self.codec.prompt([{"role": "user", "content": "?"}])
        reply = await session.generate(prompt)
        session.record(Turn(Observation(""), prompt, reply, Action("", "valid", "", "", 0), 0, 0.5, "", "", ""))
        ids: Any = np.array(prompt)
        success: Any = np.float32(1) > 0
        return Ending(tuple(ids), success=success, progression=np.float32(0.5))


def test_an_ending_of_numpys_numbers_is_one_of_pythons(renderer):
    config = play_config(
        agent={"use": f"{__name__}:Numeric"}, rollout={"n_env": 1, "episodes": 1}, update={"minibatch": 1}
    )
    with closing(Collector(config, renderer)) as collector:
        (one,) = collector.collect(Scripted(renderer))
    outcome = one.outcome
    assert outcome and outcome.success is True and type(outcome.progression) is float
    assert {type(token) for token in one.final_prompt_ids} == {int}


class Cutting:
    """Cuts each reply short before it makes a turn of it, with ids as a list of NumPy's."""

    def __init__(self, setting: Any):
        self.codec = setting.codec

    async def run(self, session: Any) -> Ending:
        for number in range(5):
            ids = [
                np.int64(one) for one in self.codec.prompt([{"role": "user", "content": f"{session.name} {number}"}])
            ]
            reply = await session.generate(ids)
            short = replace(reply, token_ids=reply.token_ids[:3], logprobs=reply.logprobs[:3])
            prompt: Any = ids
            session.record(Turn(Observation(""), prompt, short, Action("", "valid", "", "", 0), 0, 0.5, "", "", ""))
        return Ending(())


@pytest.mark.parametrize("mode", ["async", "elastic"])
def test_replies_that_an_agent_cuts_are_trained_on_once_though_the_run_is_killed(renderer, mode):
    rollout = {"n_env": 2, "e_len": 2, "mode": mode}
    log = {"traces": ["jsonl"], "trace_every": 1}
    config = play_config(agent={"use": f"{__name__}:Cutting"}, rollout=rollout, update={"minibatch": 1}, log=log)
    collector, engine = Collector(config, renderer), Obedient(renderer, ["yes indeed"])
    prompts: list[tuple[int, ...]] = []
    traces = []
    for _ in range(12):
        prompts += [turn.prompt_ids for one in collector.collect(engine) for turn in one.turns]
        traces += collector.tally.traces
        saved = json.loads(json.dumps(collector.state()))
        collector.close()
        collector, engine = Collector(config, renderer), Obedient(renderer, ["yes indeed"])
        assert collector.restore(saved) == 0
    collector.close()
    assert len(prompts) == len(set(prompts)) >= 40
    assert {len(one.recording.turns) for one in traces} == {5}
    assert all(not one.recording.loose for one in traces)


class Outliving:
    """Ends, and a branch of it counts and tells on."""

    def __init__(self, setting: Any):
        self.codec, self.left = setting.codec, []

    async def run(self, session: Any) -> Ending:
        self.left.append(asyncio.ensure_future(self._tell(session)))
        for _ in range(2):
            prompt = self.codec.prompt([{"role": "user", "content": session.name}])
            reply = await session.generate(prompt)
            session.record(Turn(Observation(""), prompt, reply, Action("", "valid", "", "", 0), 0, 0.5, "", "", ""))
        return Ending(())

    async def _tell(self, session: Any) -> None:
        for _ in range(20):
            session.count(session.name)
            session.write(f"{session.name} told")
            await asyncio.sleep(0)


def test_a_branch_that_outlives_its_episode_tells_nothing_of_the_next_one(renderer):
    rollout, log = {"n_env": 1, "episodes": 4}, {"transcript_every": 1}
    config = play_config(agent={"use": f"{__name__}:Outliving"}, rollout=rollout, log=log, update={"minibatch": 1})
    with closing(Collector(config, renderer)) as collector:
        segments = collector.collect(Scripted(renderer, ["yes"]))
        for one, transcript in zip(segments, collector.tally.transcripts, strict=True):
            assert one.outcome and list(one.outcome.figures) == [f"{one.task}/0/{one.episode}"]
            assert set(re.findall(r"(\S+) told", transcript.text)) == {f"{one.task}/0/{one.episode}"}


class Hungry:
    """Uses up the list that it was made with, as a parser and as an environment's rules would."""

    cue = ""

    def __init__(self, actions: list[str], default: str, spare: Any = ()):
        actions.sort(reverse=True)
        self.first = spare.pop() if spare else None
        self.cue = f"One of: {', '.join(actions)}"

    def parse(self, text: str) -> Action:
        return Action("add", "valid", "add", "", 0)

    def format(self, thought: str, action: str) -> str:
        return action


def test_each_part_is_made_of_what_the_recipe_says_and_shows_its_own_cue(renderer):
    parser = {"use": f"{__name__}:Hungry", "spare": ["a", "b"]}
    config = play_config(parser=parser, rollout={"n_env": 2, "episodes": 1, "max_episode_turns": 2})
    engine = Scripted(renderer)
    with closing(Collector(config, renderer)) as collector:
        collector.collect(engine)
        assert [slot.agent.parser.first for slot in collector.slots] == ["b", "b"]  # type: ignore[attr-defined]
        assert collector.slots[0].agent.host.offer.actions == list(Counter.actions)  # type: ignore[attr-defined]
    assert all(f"One of: {', '.join(sorted(Counter.actions, reverse=True))}" in prompt for prompt in engine.prompts)
    assert config.parser.arguments == {"spare": ["a", "b"]}


class Side(Window):
    """Asks two questions side by side before each prompt."""

    async def prompt(self, past: Any, turns: int, observation: Observation, ask: Any) -> list[Message]:
        async with asyncio.TaskGroup() as group:
            for number in range(2):
                group.create_task(ask([{"role": "user", "content": f"{observation.text} {number}?" + "!" * 9 * turns}]))
        return await super().prompt(past, turns, observation, ask)


def test_a_memory_may_ask_side_by_side(renderer):
    memory = {"use": f"{__name__}:Side"}
    config = play_config(memory=memory, rollout={"n_env": 1, "episodes": 2, "max_episode_turns": 3})
    with closing(Collector(config, renderer)) as collector:
        segments = collector.collect(Scripted(renderer))
    assert [one.end for one in segments] == ["truncated"] * 2
    assert {len([turn for turn in one.turns if turn.of_memory]) for one in segments} == {6}


class Planning(Window):
    """Asks before each prompt, and does not look for an answer that it has had."""

    async def prompt(self, past: Any, turns: int, observation: Observation, ask: Any) -> list[Message]:
        plan = await ask([{"role": "user", "content": f"{observation.text} Your plan?"}])
        messages = await super().prompt(past, turns, observation, ask)
        return [*messages[:-1], {"role": "user", "content": f"{plan}\n{messages[-1]['content']}"}]


def test_a_memory_whose_prompt_is_too_long_has_the_answers_that_it_had(renderer):
    engine = Scripted(renderer, lambda prompt, _: "Think." if "Your plan?" in prompt else "ACTION: add")
    collector = Collector(long_config(50, {"use": f"{__name__}:Planning", "turns": 4}, e_len=8), renderer)
    (segment,) = collector.collect(engine)
    assert collector.tally.shortened_prompts > 2
    assert [turn.of_memory for turn in segment.turns] == [True, False] * 8


def test_a_memory_whose_answer_leaves_no_room_is_told_so(renderer):
    engine = Scripted(renderer, lambda prompt, _: "word " * 99 if "Your plan?" in prompt else "ACTION: add")
    memory = {"use": f"{__name__}:Planning", "turns": 4}
    collector = Collector(long_config(50, memory, e_len=8, max_prompt_tokens=400), renderer)
    with pytest.raises(ValueError, match=r"rollout\.max_prompt_tokens is 400"):
        collector.collect(engine)
    assert len(engine.prompts) == 1


def test_what_no_memory_reads_is_not_kept_for_it(renderer):
    """Of a long episode that shows all its turns, checkpoints would hold every prompt."""
    collector = Collector(long_config(50, {"use": "full"}, e_len=6), renderer)
    (segment,) = collector.collect(Scripted(renderer))
    past = collector.state()[0]["agent"]["past"]
    assert [turn["prompt_ids"] for turn in past] == [[]] * 6
    assert [tuple(turn["generation"]["token_ids"]) for turn in past] == [t.generation.token_ids for t in segment.turns]


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"memory": {"use": f"{__name__}:Plain"}}, r"memory: Plain\.prompt is no coroutine; write async def prompt"),
        ({"agent": {"use": f"{__name__}:Flat"}}, r"agent: Flat\.run is no coroutine; write async def run"),
    ],
)
def test_what_is_not_async_is_told_in_a_sentence(renderer, tree, said):
    with closing(Collector(play_config(**tree), renderer)) as collector, pytest.raises(ValueError, match=said):
        collector.collect(Scripted(renderer))


class Plain:
    span = 0

    def prompt(self, *_: Any) -> list[Message]:
        return [{"role": "user", "content": "?"}]


class Flat:
    def __init__(self, setting: Any):
        pass

    def run(self, session: Any) -> Ending:
        return Ending(())
