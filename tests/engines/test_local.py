"""The engine samples what the trainer would say it samples, and nobody notices who else is being served."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from helpers import play_config
from hypothesis import given
from hypothesis import strategies as st
from transformers import OPTConfig, OPTForCausalLM

from turnwise.batch import pack
from turnwise.collector import Collector
from turnwise.engines import attention, drafts, local, replay
from turnwise.engines.decoder import Decoder
from turnwise.engines.local import LocalEngine
from turnwise.engines.sampler import sample
from turnwise.policy import Policy
from turnwise.render import Renderer
from turnwise.types import Generation, Sampling, Segment

PROMPTS = [
    tuple(np.random.default_rng(n).integers(0, 256, size)) for n, size in enumerate((3, 40, 1, 17, 80, 5, 66, 2))
]
PROMPTS = [tuple(map(int, prompt)) for prompt in PROMPTS]


@pytest.fixture(params=["decoder", "no loops", "module", "replays"])
def engine(tiny, request, monkeypatch) -> LocalEngine:
    """Stops at one token in nine or so, so that the requests of a crowd leave at different times."""
    monkeypatch.setattr(Decoder, "fits", lambda model, bf16: request.param != "module")
    if request.param == "no loops":
        monkeypatch.setattr(attention, "has_threads", lambda: False)
    engine = LocalEngine(tiny[0], frozenset(range(2, 259, 9)), nullcontext())
    if request.param == "replays":
        replaying(engine, monkeypatch)
    return engine


def replaying(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where passes are recorded; here they are computed again."""

    def record(compute: Callable[[], torch.Tensor], device: torch.device) -> tuple[Callable[[], Any], torch.Tensor]:
        found = compute()
        return lambda: found.copy_(compute()), found

    monkeypatch.setattr(replay, "record", record)
    engine._replays = True


@pytest.fixture
def watched(tiny, monkeypatch) -> LocalEngine:
    """Samples by the model's own modules, which a test can hook on to."""
    monkeypatch.setattr(Decoder, "fits", lambda model, bf16: False)
    return LocalEngine(tiny[0], frozenset(), nullcontext())


def together(engine: LocalEngine, requests: Sequence[tuple[Sequence[int], Sampling]]) -> list[Generation]:
    async def ask() -> list[Generation]:
        return await asyncio.gather(*(engine.generate(prompt, sampling) for prompt, sampling in requests))

    return asyncio.run(ask())


def alone(engine: LocalEngine, prompt: Sequence[int], sampling: Sampling) -> Generation:
    return together(engine, [(prompt, sampling)])[0]


def requests_of(number: int = 8, longest: int = 24) -> list[tuple[tuple[int, ...], Sampling]]:
    lengths = [longest, 1, 7, 24, 3, 24, 12, 2]
    return [(PROMPTS[n], Sampling(lengths[n], seed=n)) for n in range(number)]


def assert_same(one: Generation, other: Generation) -> None:
    assert replace(one, logprobs=()) == replace(other, logprobs=())
    assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


# -- the trainer and the engine agree


def played(tiny: Any, memory: dict[str, Any], temperature: float = 1.0, **rollout: Any) -> list[Segment]:
    """Two batches of real play: episodes of 5 turns, some cut, prompts and replies of all lengths."""
    model, tokenizer = tiny
    renderer = Renderer(tokenizer)
    config = play_config(
        "helpers:AnyCounter",
        parser={"use": "helpers:AnyText"},
        memory=memory,
        environment={"kwargs": {"limit": 5}},
        rollout={"n_env": 3, "e_len": 4, "temperature": temperature, "max_reply_tokens": 16, **rollout},
    )
    collector, engine = Collector(config, renderer), LocalEngine(model, renderer.stop_ids, nullcontext())
    return [*collector.collect(engine), *collector.collect(engine)]


MEMORIES = {
    "window": {"use": "window", "turns": 2},
    "full": {"use": "full"},
    "note": {"use": "note", "question": "?"},
}


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("memory", list(MEMORIES))
def test_the_trainer_gives_each_sampled_token_the_log_prob_of_the_engine(tiny, memory, temperature):
    segments = played(tiny, MEMORIES[memory], temperature)
    assert {one.end for one in segments} == {"truncated", "cut"}
    assert {turn.generation.finish_reason for one in segments for turn in one.turns} == {"stop", "length"}
    batch = pack(segments)
    joined = {"window": False, "full": True, "note": False}[memory]
    assert (len(batch.trained_rows) < sum(len(one.turns) for one in segments)) == joined
    policy = Policy(tiny[0], "shared", reference=False, temperature=temperature)
    assert batch.logprobs.std() > 0.5
    for max_tokens in (1, 300, 100_000):
        assert torch.allclose(policy.logprobs(batch, max_tokens), batch.logprobs, atol=1e-4, rtol=0)
    backwards = pack(segments[::-1])
    assert torch.allclose(policy.logprobs(backwards, 300), backwards.logprobs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("filters", [{"top_k": 5}, {"top_p": 0.7}, {"top_k": 9, "top_p": 0.8}])
def test_filters_choose_among_tokens_but_log_probs_are_of_the_whole_distribution(tiny, filters):
    batch = pack(played(tiny, MEMORIES["window"], **filters))
    policy = Policy(tiny[0], "shared", reference=False)
    assert torch.allclose(policy.logprobs(batch, 1000), batch.logprobs, atol=1e-4, rtol=0)


def test_another_temperature_or_other_weights_do_not_agree(tiny):
    """So the tests above can fail."""
    batch = pack(played(tiny, MEMORIES["window"]))
    cold = Policy(tiny[0], "shared", reference=False, temperature=0.9)
    assert (cold.logprobs(batch, 1000) - batch.logprobs).abs().max() > 0.01
    with torch.no_grad():
        tiny[0].lm_head.weight += 0.01 * torch.randn(tiny[0].lm_head.weight.shape, generator=torch.manual_seed(0))
    moved = Policy(tiny[0], "shared", reference=False)
    assert (moved.logprobs(batch, 1000) - batch.logprobs).abs().max() > 0.01


def test_tokens_carry_the_version_of_the_weights_that_sampled_them(engine):
    assert alone(engine, PROMPTS[0], Sampling(2)).policy_version == 0
    engine.load({}, 7)
    assert alone(engine, PROMPTS[0], Sampling(2)).policy_version == 7


def test_what_the_trainer_changes_the_engine_samples(engine):
    before = alone(engine, PROMPTS[1], Sampling(4))
    with torch.no_grad():
        engine.model.lm_head.weight.zero_()
    engine.load({}, 1)
    after = alone(engine, PROMPTS[1], Sampling(4))
    assert after.logprobs == pytest.approx([-np.log(259)] * len(after.logprobs), abs=1e-5)
    assert before.logprobs != pytest.approx(after.logprobs[: len(before.logprobs)], abs=1e-3)


@pytest.mark.parametrize("step", [0, 1, 5, 23])
def test_replies_under_way_go_on_when_weights_come(engine, step):
    """The same weights, so the reply is what it would have been; the versions tell where they came."""
    whole = together(engine, requests_of())
    engine.load({}, 0)  # who has said it all before would draft it all

    async def interrupted() -> list[Generation]:
        tasks = [asyncio.ensure_future(engine.generate(prompt, sampling)) for prompt, sampling in requests_of()]
        while not engine._running:
            await asyncio.sleep(0)
        for _ in range(step):
            await asyncio.sleep(0)
        engine.load({}, 4)
        return await asyncio.gather(*tasks)

    replies = asyncio.run(interrupted())
    assert any(reply.versions for reply in replies) == (step < 23)
    for reply, other in zip(replies, whole, strict=True):
        assert_same(replace(reply, versions=(), policy_version=0), other)
        if reply.versions:
            assert set(reply.versions) == {0, 4} and list(reply.versions) == sorted(reply.versions)
            assert reply.policy_version == 4 and len(reply.versions) == len(reply.token_ids)


# -- greedy play


def test_greedy_replies_are_those_of_transformers(tiny):
    engine, stops = LocalEngine(tiny[0], frozenset([2, 258]), nullcontext()), [2, 258]
    mine = together(engine, [(prompt, Sampling(20, temperature=0)) for prompt in PROMPTS])
    for prompt, generation in zip(PROMPTS, mine, strict=True):
        ids = torch.tensor([prompt])
        theirs = tiny[0].generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=20,
            eos_token_id=stops,
            pad_token_id=0,
        )
        assert generation.token_ids == tuple(theirs[0, len(prompt) :].tolist())
    assert {len(generation.token_ids) < 20 for generation in mine} == {True, False}


def test_greedy_tokens_are_scored_at_temperature_one(engine):
    generation = alone(engine, PROMPTS[3], Sampling(3, temperature=0))
    ids = torch.tensor([[*PROMPTS[3], *generation.token_ids]])
    with torch.no_grad():
        scores = torch.log_softmax(engine.model(ids).logits[0, len(PROMPTS[3]) - 1 : -1], -1)
    assert generation.token_ids == tuple(scores.argmax(-1).tolist())
    assert generation.logprobs == pytest.approx(scores.amax(-1).tolist(), abs=1e-5)


# -- alone or in a crowd


def test_a_request_gives_the_same_tokens_alone_or_in_a_crowd(engine):
    requests = requests_of()
    crowd = together(engine, requests)
    assert {one.finish_reason for one in crowd} == {"stop", "length"}
    for (prompt, sampling), generation in zip(requests, crowd, strict=True):
        assert_same(generation, alone(engine, prompt, sampling))
    turned = together(engine, requests[::-1])[::-1]
    for one, other in zip(crowd, turned, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("gaps", [(0, 3, 3, 4, 9, 11, 20, 21), (9, 0, 0, 2, 4, 4, 4, 30), (0, 60, 0, 60, 0, 60, 0, 60)])
def test_a_request_may_come_while_others_are_served(engine, gaps):
    """The last ones come when the engine may have nothing left to do."""
    requests = requests_of()

    async def late(gap: int, prompt: Sequence[int], sampling: Sampling) -> Generation:
        for _ in range(gap):
            await asyncio.sleep(0)
        return await engine.generate(prompt, sampling)

    async def ask() -> list[Generation]:
        return await asyncio.gather(*(late(gap, *one) for gap, one in zip(gaps, requests, strict=True)))

    for (prompt, sampling), generation in zip(requests, asyncio.run(ask()), strict=True):
        assert_same(generation, alone(engine, prompt, sampling))


def test_who_has_a_reply_may_ask_again_at_once(engine):
    """As slots do: each goes on by itself, and the cache grows and shrinks with them."""

    async def converse(start: int) -> list[tuple[Sequence[int], Sampling, Generation]]:
        prompt, seen = PROMPTS[start], []
        for turn in range(4):
            sampling = Sampling(1 + 5 * (start + turn) % 23, seed=10 * start + turn)
            generation = await engine.generate(prompt, sampling)
            seen.append((prompt, sampling, generation))
            prompt = (*prompt, *generation.token_ids, 65)
        return seen

    async def ask():
        return await asyncio.gather(*map(converse, range(6)))

    for seen in asyncio.run(ask()):
        for prompt, sampling, generation in seen:
            assert_same(generation, alone(engine, prompt, sampling))


def test_a_prompt_waits_a_little_for_others_to_be_read_with(watched, monkeypatch):
    """Beside six others two are read at once, and one alone after some passes."""
    monkeypatch.setattr(drafts, "_AHEAD", 0)

    async def ask(late: int, read: list[tuple[int, ...]]) -> None:
        busy = [asyncio.create_task(watched.generate((n, 9, 9), Sampling(30))) for n in range(6)]
        while len(read) < 3:
            await asyncio.sleep(0)
        await asyncio.gather(*(watched.generate((20 + n, 9), Sampling(3)) for n in range(late)), *busy)

    def passes_before(late: int) -> int:
        watched.load({}, 0)
        read: list[tuple[int, ...]] = []
        decoder = watched.model.get_decoder()
        hook = decoder.register_forward_pre_hook(lambda _, given: read.append(tuple(given[0].shape)))
        asyncio.run(ask(late, read))
        hook.remove()
        return read.index((late, 2))

    assert passes_before(1) == passes_before(2) + local._PATIENCE


def tokens_read(engine: LocalEngine, prompts: Sequence[Sequence[int]]) -> list[int]:
    """How many prompt tokens the model reads for each prompt, asked one after the other for replies of 3 tokens."""
    read: list[int] = []
    hook = engine.model.get_decoder().register_forward_pre_hook(lambda _, given: read.append(given[0].numel()))
    for prompt in prompts:
        read.append(-1)
        alone(engine, prompt, Sampling(3))
    hook.remove()
    return [read[place + 1] for place, count in enumerate(read) if count == -1]


def test_what_a_prompt_has_in_common_with_an_earlier_one_is_not_read_again(watched):
    engine = watched
    start = PROMPTS[1]  # 40 tokens
    reply = alone(engine, start, Sampling(3)).token_ids
    longer = (*start, *reply, 7, 8)
    assert tokens_read(engine, [longer]) == [3]  # the last sampled token was never read
    assert tokens_read(engine, [longer]) == [1]
    assert tokens_read(engine, [(*start[:30], 9, 9)]) == [2]
    assert tokens_read(engine, [PROMPTS[4]]) == [len(PROMPTS[4])]
    engine.load({}, 1)
    assert tokens_read(engine, [longer]) == [len(longer)]


def test_what_prompts_that_arrive_together_have_in_common_is_read_once(watched, monkeypatch):
    monkeypatch.setattr(drafts, "_AHEAD", 0)
    engine = watched
    start = PROMPTS[4]  # 80 tokens
    prompts = [start, start, PROMPTS[0], start, *((*start[:50], 9, number) for number in range(3))]
    requests = [(prompt, Sampling(4, seed=number)) for number, prompt in enumerate(prompts)]
    read: list[tuple[int, ...]] = []
    hook = engine.model.get_decoder().register_forward_pre_hook(lambda _, given: read.append(tuple(given[0].shape)))
    replies = together(engine, requests)
    hook.remove()
    assert read[:2] == [(2, 80), (5, 2)] and {shape[1] for shape in read[2:]} == {1}
    for (prompt, sampling), reply in zip(requests, replies, strict=True):
        assert_same(reply, alone(engine, prompt, sampling))


def test_prompts_that_are_too_many_for_one_pass_are_read_in_several(watched, monkeypatch):
    monkeypatch.setattr(local, "_PASS", 100)
    requests = [(prompt, Sampling(4, seed=number)) for number, prompt in enumerate(PROMPTS)]
    read: list[int] = []
    hook = watched.model.get_decoder().register_forward_pre_hook(lambda _, given: read.append(given[0].numel()))
    replies = together(watched, requests)
    hook.remove()
    assert max(read) <= max(100, *map(len, PROMPTS)) < sum(map(len, PROMPTS))
    watched.load({}, 1)
    monkeypatch.setattr(local, "_PASS", 10**6)
    for reply, again in zip(replies, together(watched, requests), strict=True):
        assert_same(reply, replace(again, policy_version=0))


def test_a_conversation_goes_on_in_its_own_row(watched):
    """So the cache does not grow with the turns of an episode."""
    engine = watched
    prompts = {n: PROMPTS[n] for n in (1, 4, 6)}
    for turn in range(4):
        replies = together(engine, [(prompt, Sampling(3, seed=turn)) for prompt in prompts.values()])
        prompts = {
            n: (*prompt, *reply.token_ids, turn) for (n, prompt), reply in zip(prompts.items(), replies, strict=True)
        }
        assert len(engine._cache._rows) == 3
        assert tokens_read(engine, [prompts[1]]) == [2]


# -- drafts


def repeating(n: int) -> tuple[int, ...]:
    """A prompt in which every ending has been there before."""
    return PROMPTS[n][:6] * 4


@pytest.mark.parametrize("number", [1, 3, 8])
@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
def test_drafts_change_no_reply(engine, monkeypatch, number, temperature):
    requests = [(repeating(n), Sampling(5 + 3 * n, temperature, seed=n)) for n in range(number)]
    replies = {}
    for ahead, least in ((0, 1.0), (1, 0.0), (4, 0.2), (7, 0.0)):
        monkeypatch.setattr(drafts, "_AHEAD", ahead)
        monkeypatch.setattr(local, "worth", lambda requests, least=least: least)
        engine.load({}, 0)
        replies[ahead] = together(engine, requests)
        again = together(engine, requests)  # what drafts leave in the cache is not taken for what was said
        for reply, other, plain in zip(replies[ahead], again, replies[0], strict=True):
            assert_same(reply, plain)
            assert_same(other, plain)


def passes(engine: LocalEngine, prompt: Sequence[int], tokens: int) -> int:
    """Through the model, for a greedy reply."""
    seen: list[object] = []
    hook = engine.model.get_decoder().register_forward_pre_hook(lambda *_: seen.append(None))
    assert len(alone(engine, prompt, Sampling(tokens, temperature=0.0)).token_ids) == tokens
    hook.remove()
    return len(seen)


def test_drafts_that_come_true_save_passes(watched, monkeypatch):
    with torch.no_grad():
        watched.model.get_decoder().norm.weight.zero_()  # so it always says the first of its tokens
    monkeypatch.setattr(local, "worth", lambda requests: 0.0)
    assert passes(watched, (5, 6, 7), 53) == 2 + 51 / (drafts._AHEAD + 1)
    monkeypatch.setattr(drafts, "_AHEAD", 0)
    assert passes(watched, (8, 9), 42) == 42


def test_what_was_said_before_is_drafted_until_weights_come(watched):
    first = passes(watched, (5, 6, 7), 30)
    assert passes(watched, (5, 6, 7), 30) < first / 2
    watched.load({}, 1)
    assert passes(watched, (5, 6, 7), 30) == first


def test_other_seeds_give_other_tokens(engine):
    replies = {alone(engine, PROMPTS[0], Sampling(24, seed=seed)).token_ids for seed in range(8)}
    assert len(replies) == 8


def test_a_caller_who_leaves_disturbs_nobody(engine):
    requests = requests_of()

    async def ask() -> list[Any]:
        tasks = [asyncio.create_task(engine.generate(prompt, sampling)) for prompt, sampling in requests]
        for _ in range(3):
            await asyncio.sleep(0)
        tasks[0].cancel()
        tasks[3].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    answers = asyncio.run(ask())
    for number, ((prompt, sampling), answer) in enumerate(zip(requests, answers, strict=True)):
        if number in (0, 3):
            assert isinstance(answer, asyncio.CancelledError)
        else:
            assert_same(answer, alone(engine, prompt, sampling))


def test_what_nobody_waits_for_any_more_is_not_sampled_on(tiny):
    engine = LocalEngine(tiny[0], frozenset(), nullcontext())

    async def leave() -> bool:
        task = asyncio.create_task(engine.generate(PROMPTS[0], Sampling(1000)))
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert engine._driver is not None
        return engine._driver.done()

    assert asyncio.run(leave())


# -- how a reply ends


def test_a_reply_ends_with_a_stop_token_or_at_the_limit(engine):
    stops = engine._stop_ids
    seen = set()
    for seed, limit in enumerate([1, 1, 1, 1, 2, 3, 5, 8, 12, 24] * 3):
        generation = alone(engine, PROMPTS[seed % 8], Sampling(limit, seed=seed))
        *before, last = generation.token_ids
        assert not stops & set(before)
        assert len(generation.logprobs) == len(generation.token_ids) <= limit
        assert (generation.finish_reason == "stop") == (last in stops)
        if generation.finish_reason == "length":
            assert len(generation.token_ids) == limit
        seen.add((generation.finish_reason, limit == 1))
    assert seen == {("stop", True), ("stop", False), ("length", True), ("length", False)}


def test_to_nothing_there_is_no_reply(engine):
    with pytest.raises(ValueError, match="a prompt is empty"):
        together(engine, [(PROMPTS[0], Sampling(4)), ((), Sampling(4))])
    assert len(alone(engine, PROMPTS[0], Sampling(1)).token_ids) == 1


@pytest.mark.parametrize("strange", [-1, 10**6])
def test_an_id_that_the_model_does_not_have_is_refused(engine, strange):
    with pytest.raises(ValueError, match=f"a prompt holds the id {strange}, and the model has those from 0 to "):
        alone(engine, (*PROMPTS[0], strange), Sampling(1))


def test_without_stop_tokens_replies_go_to_the_limit(tiny):
    engine = LocalEngine(tiny[0], frozenset(), nullcontext())
    assert [len(one.token_ids) for one in together(engine, requests_of())] == [24, 1, 7, 24, 3, 24, 12, 2]


def test_a_shorter_limit_only_cuts_the_reply(engine):
    whole = alone(engine, PROMPTS[2], Sampling(24, seed=5)).token_ids
    assert len(whole) > 3
    for limit in range(1, len(whole)):
        assert alone(engine, PROMPTS[2], Sampling(limit, seed=5)).token_ids == whole[:limit]


def test_the_model_is_left_in_the_mode_in_which_it_was_found(watched):
    modes = []
    hook = watched.model.lm_head.register_forward_hook(lambda *_: modes.append(watched.model.training))
    for training in (True, False):
        watched.model.train(training)
        alone(watched, PROMPTS[0], Sampling(2))
        assert watched.model.training is training
    hook.remove()
    assert set(modes) == {False}


# -- failures


@pytest.mark.parametrize(
    ("call", "gap", "reached"),
    [
        (1, 1, "01234567"),  # while the prompts are read
        (2, 1, "0234567"),  # number 1 has its only token already
        (2, 3, "0234"),  # the last three come when it is over
        (5, 1, "02356"),  # those of one, two and three tokens are done
        (5, 4, "023567"),  # the last three have just been read
    ],
)
def test_an_exception_in_the_model_reaches_every_caller_and_the_engine_is_usable_afterwards(
    watched, call, gap, reached
):
    engine, requests = watched, requests_of()
    expected = together(engine, requests)
    engine.load({}, 0)  # who has said it all before would draft it all
    calls = count(1)

    def fail(*_: object) -> None:
        if next(calls) == call:
            raise RuntimeError("out of memory")

    async def ask():
        first = [asyncio.create_task(engine.generate(*one)) for one in requests[:5]]
        for _ in range(gap):
            await asyncio.sleep(0)
        async with asyncio.timeout(20):  # nobody may wait forever
            return await asyncio.gather(
                *first, *(engine.generate(*one) for one in requests[5:]), return_exceptions=True
            )

    hook = engine.model.lm_head.register_forward_hook(fail)
    answers = asyncio.run(ask())
    hook.remove()
    assert [n for n, answer in enumerate(answers) if isinstance(answer, RuntimeError)] == list(map(int, reached))
    for answer, generation in zip(answers, expected, strict=True):
        if not isinstance(answer, BaseException):
            assert_same(answer, generation)
    for one, other in zip(together(engine, requests), expected, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("part", ["lm_head", "model"])
def test_no_caller_waits_for_ever_wherever_the_model_fails(watched, part):
    """In the trunk or in the head, at any call, whoever has come by then."""
    engine, requests = watched, requests_of(6, longest=6)

    async def late(gap: int, request: Any) -> Generation:
        for _ in range(gap):
            await asyncio.sleep(0)
        return await engine.generate(*request)

    async def ask(gap: int) -> list[Any]:
        async with asyncio.timeout(3):
            return await asyncio.gather(
                *(late(gap * (n % 3), request) for n, request in enumerate(requests)), return_exceptions=True
            )

    for call in range(1, 7):
        for gap in range(5):
            calls = count(1)

            def fail(*_: object, calls: Any = calls, call: int = call) -> None:
                if next(calls) == call:
                    raise RuntimeError("out of memory")

            engine.load({}, 0)
            hook = engine.model.get_submodule(part).register_forward_hook(fail)
            answers = asyncio.run(ask(gap))
            hook.remove()
            assert any(isinstance(answer, RuntimeError) for answer in answers)
            assert all(isinstance(answer, RuntimeError | Generation) for answer in answers)


def test_after_a_failure_the_same_loop_may_go_on(watched):
    expected = alone(watched, *requests_of()[0])
    calls = count(1)

    def fail(*_: object) -> None:
        if next(calls) == 1:
            raise RuntimeError("out of memory")

    async def ask():
        with pytest.raises(RuntimeError, match="out of memory"):
            await watched.generate(*requests_of()[0])
        return await watched.generate(*requests_of()[0])

    hook = watched.model.lm_head.register_forward_hook(fail)
    assert_same(asyncio.run(ask()), expected)
    hook.remove()


# -- drawing

LOGITS = torch.tensor([0.3, 2.0, -1.0, 1.2, float("-inf"), 0.0, 1.9, -2.5])


def exact(temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    """The distribution that is drawn from, written out in words: rank, keep the head, scale it up to one."""
    probabilities = torch.softmax(LOGITS.double() / temperature, -1)
    kept, mass = torch.zeros_like(probabilities), 0.0
    for rank, token in enumerate(probabilities.argsort(descending=True).tolist()):
        if (top_k and rank >= top_k) or mass >= top_p:
            break
        kept[token] = probabilities[token]
        mass += float(probabilities[token])
    return kept / kept.sum()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (3, 1.0), (1, 1.0), (0, 0.75), (0, 0.01), (4, 0.6), (2, 0.95)])
def test_tokens_are_drawn_as_often_as_their_probability_says(temperature, top_k, top_p):
    uniform = torch.rand(8000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    one = Sampling(1, temperature, top_p, top_k)
    expected = exact(temperature, top_k, top_p)
    kept = expected > 0
    tokens, logprobs = sample(LOGITS.expand(len(uniform), -1), [one] * len(uniform), uniform)
    counts = torch.bincount(tokens, minlength=len(LOGITS))
    assert torch.allclose(logprobs, torch.log_softmax(LOGITS / temperature, -1)[tokens], atol=1e-6)
    total = counts.sum()
    assert counts[~kept].sum() == 0
    chi_square = (((counts - total * expected)[kept]) ** 2 / (total * expected)[kept]).sum()
    assert chi_square < 30  # with at most 6 degrees of freedom, one in 25,000 is larger


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("top_k", [0, 1, 2, 5, 8, 20])
def test_each_token_is_drawn_by_the_luck_in_its_part_of_the_distribution(temperature, top_k):
    for top_p in (*(percent / 100 for percent in range(2, 100, 7)), 1.0):
        one = Sampling(1, temperature, top_p, top_k)
        expected = exact(temperature, top_k, top_p)
        kept = expected.nonzero()[:, 0]
        above = expected.cumsum(-1)[kept]
        edges = torch.cat([above - expected[kept] + 1e-6, above - 1e-6])
        tokens, _ = sample(LOGITS.expand(len(edges), -1), [one] * len(edges), edges)
        assert tokens.tolist() == kept.tolist() * 2


def test_every_token_of_a_reply_has_luck_of_its_own(tiny):
    model = tiny[0]
    with torch.no_grad():
        model.lm_head.weight.zero_()  # all tokens are equally likely
    engine = LocalEngine(model, frozenset(), nullcontext())
    replies = together(engine, [(PROMPTS[0], Sampling(150, seed=seed)) for seed in range(4)])
    drawn = torch.tensor([one.token_ids for one in replies])
    assert all(len(set(row)) > 80 for row in drawn.tolist())
    thirds = torch.bincount(drawn.flatten() // 87, minlength=3)
    assert thirds.sum() == 600
    assert (thirds - 200).abs().max() < 45  # four standard deviations
    assert (drawn[0] == drawn[1]).sum() < 10


def test_every_row_is_drawn_by_its_own_settings():
    ways = [
        Sampling(1, 0.0),
        Sampling(1, 1.0, top_k=1),
        Sampling(1, 1.0),
        Sampling(1, 0.5, top_p=0.5),
        Sampling(1, 2.0),
    ]
    for uniform in (0.0, 0.25, 0.5, 0.75, 0.999):
        together_, logprobs = sample(LOGITS.expand(5, -1), ways, torch.full((5,), uniform, dtype=torch.float64))
        for row, one in enumerate(ways):
            token, logprob = sample(LOGITS[None], [one], torch.tensor([uniform], dtype=torch.float64))
            assert (together_[row], logprobs[row]) == (token[0], logprob[0])


def test_ties_are_broken_the_same_way_by_greedy_play_and_by_the_single_best():
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0]])
    uniform = torch.tensor([0.9], dtype=torch.float64)
    greedy, _ = sample(logits, [Sampling(1, 0.0)], uniform)
    assert greedy.tolist() == [1]


lucks = st.one_of(st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, 2**-60, 0.5, 1 - 2**-30, 1 - 2**-53]))
logits_ = st.lists(st.one_of(st.floats(-60, 60, width=32), st.just(float("-inf"))), min_size=1, max_size=12).filter(
    lambda row: max(row) > float("-inf")
)
filters = st.tuples(st.sampled_from([0.0, 0.1, 1.0, 3.0]), st.sampled_from([0.01, 0.5, 0.9, 1.0]), st.integers(0, 12))


@given(logits_, filters, lucks)
def test_a_token_of_probability_zero_is_never_drawn(row, how, uniform):
    logits = torch.tensor([row])
    temperature, top_p, top_k = how
    (token,), (logprob,) = sample(
        logits, [Sampling(1, temperature, top_p, top_k)], torch.tensor([uniform], dtype=torch.float64)
    )
    logprobs = torch.log_softmax(logits / (temperature or 1.0), -1)[0]
    assert logprobs[token] > -torch.inf
    assert logprob == pytest.approx(logprobs[token].item(), abs=1e-5)
    likelier = int((logprobs > logprobs[token]).sum())
    if temperature == 0:
        assert likelier == 0
    elif top_k:
        assert likelier < top_k
    if temperature and top_p < 1:
        assert logprobs[logprobs > logprobs[token]].double().exp().sum() < top_p + 1e-6


@given(logits_, lucks, st.sampled_from([0.5, 1.0]))
def test_the_single_best_token_is_the_greedy_one(row, uniform, temperature):
    logits = torch.tensor([row])
    place = torch.tensor([uniform], dtype=torch.float64)
    (single,), _ = sample(logits, [Sampling(1, temperature, top_k=1)], place)
    (narrow,), _ = sample(logits, [Sampling(1, temperature, top_p=1e-9)], place)
    assert logits[0, single] == logits[0, narrow] == logits.max()
    if (logits[0] == logits.max()).sum() == 1:
        (greedy,), _ = sample(logits, [Sampling(1, 0.0)], place)
        assert single == narrow == greedy


@given(logits_, lucks)
def test_more_luck_never_draws_an_earlier_token(row, uniform):
    """By inversion: the drawn token is the first whose cumulative probability exceeds the uniform."""
    logits = torch.tensor([row])
    (token,), _ = sample(logits, [Sampling(1)], torch.tensor([uniform], dtype=torch.float64))
    cumulative = torch.softmax(logits[0].double(), -1).cumsum(-1)
    assert uniform <= cumulative[token] + 1e-6
    assert uniform >= (cumulative[token - 1] if token else 0) - 1e-6


def test_a_model_that_wants_another_cache_is_refused():
    config = OPTConfig(
        vocab_size=50, hidden_size=32, word_embed_proj_dim=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4
    )
    with pytest.raises(ValueError, match=r"opt cannot be trained and sampled in this process \(.*Cache"):
        LocalEngine(OPTForCausalLM(config).eval(), frozenset(), nullcontext())
