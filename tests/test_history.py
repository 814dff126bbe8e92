"""Random conversations with tools, on the templates of five families, shown in both ways."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from helpers import segment, turn
from hypothesis import example, given, settings
from hypothesis import strategies as st
from speakers import SPEAKERS, Speaker, answer, call

from turnwise.batch import pack
from turnwise.render import Renderer
from turnwise.types import Message

RENDERERS = {
    (name, way): Renderer(one.tokenizer, way) for name, one in SPEAKERS.items() for way in ("exact", "template")
}
NAMES = sorted(SPEAKERS)


def user(text: str) -> Message:
    return {"role": "user", "content": text}


# -- conversations: plans of rounds, each a question, then replies with calls and their answers, then a last reply

texts = st.text(st.sampled_from('the thing €😀é\n{}"<>'), max_size=8)
thoughts = st.one_of(st.just(""), st.text(st.sampled_from("hm the €"), min_size=1, max_size=5).map(str.strip))
cuts = st.one_of(st.none(), st.none(), st.integers(1, 30))


@dataclass(frozen=True)
class Said:
    thought: str
    text: str
    cities: tuple[str, ...]  # one call each
    cut: int | None  # tokens after which the length limit stopped it


calling = st.builds(Said, thoughts, texts, st.lists(texts, min_size=1, max_size=3).map(tuple), cuts)
closing = st.builds(Said, thoughts, texts, st.just(()), cuts)
rounds = st.tuples(texts, st.lists(calling, max_size=2), closing)
plans = st.lists(rounds, min_size=1, max_size=3)
systems = st.one_of(st.none(), texts)


@dataclass
class Play:
    """A conversation as it was played: what an engine saw and sampled."""

    messages: list[Message] = field(default_factory=list)
    seen: list[tuple[int, ...]] = field(default_factory=list)
    sampled: list[tuple[int, ...]] = field(default_factory=list)
    final: tuple[int, ...] = ()  # the prompt after the last answer


def play(speaker: Speaker, renderer: Renderer, system: str | None, plan: Sequence[Any]) -> Play:
    done = Play([] if system is None else [{"role": "system", "content": system}])
    for question, cycle, last in plan:
        done.messages.append(user(question))
        for said in (*cycle, last):
            done.seen.append(renderer.prompt(done.messages, speaker.tools))
            calls = [call(("weather", "time")[n % 2], n, city=city) for n, city in enumerate(said.cities)]
            reply = speaker.say(said.text, said.thought, calls)
            if said.cut is not None and said.cut < len(reply.get("token_ids", ())):
                reply = speaker.cut(reply, said.cut)
                calls = calls[:1]  # answered once, as malformed
            done.sampled.append(tuple(reply.get("token_ids", ())))
            done.messages += [reply, *(answer(f"{one['function']['arguments']}", one) for one in calls)]
    done.messages.append(user("And?"))
    done.final = renderer.prompt(done.messages, speaker.tools)
    return done


def packed(done: Play) -> Any:
    turns = [turn(seen, ids) for seen, ids in zip(done.seen, done.sampled, strict=True)]
    return pack([segment(*turns, end="truncated", final=done.final)])


PARALLEL = [
    ("Oslo?", [Said("hm", "I look.", ("Oslo", "Ålesund €"), None), Said("", "", ("x",), 9)], Said("", "1", (), None))
]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15)
@given(systems, plans)
@example("the", [*PARALLEL, *PARALLEL])
def test_exact_every_prompt_extends_what_was_seen_and_sampled_before(name, system, plan):
    done = play(SPEAKERS[name], RENDERERS[name, "exact"], system, plan)
    for (before, after), ids in zip(pairwise([*done.seen, done.final]), done.sampled, strict=True):
        assert after[: len(before) + len(ids)] == before + ids
        assert len(after) > len(before) + len(ids)
    batch = packed(done)
    assert tuple(batch.tokens.tolist()) == done.final
    assert batch.row_lengths.tolist() == [len(done.final)]
    mask = [False] * len(done.final)
    for seen, ids in zip(done.seen, done.sampled, strict=True):
        mask[len(seen) : len(seen) + len(ids)] = [True] * len(ids)
    assert batch.sampled.tolist() == mask


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15)
@given(systems, plans)
@example("the", [*PARALLEL, *PARALLEL])
def test_as_the_template_has_it_a_row_holds_what_the_engine_saw_and_sampled(name, system, plan):
    done = play(SPEAKERS[name], RENDERERS[name, "template"], system, plan)
    batch = packed(done)
    lengths = batch.row_lengths.tolist()
    rows = [tuple(row.tolist()) for row in batch.tokens.split(lengths)]
    masks = [[False] * length for length in lengths]
    row = 0
    for seen, ids in zip(done.seen, done.sampled, strict=True):
        while rows[row][: len(seen) + len(ids)] != seen + ids:
            row += 1
        masks[row][len(seen) : len(seen) + len(ids)] = [True] * len(ids)
    assert [mask.tolist() for mask in batch.sampled.split(lengths)] == masks
    assert rows[-1] == done.final


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=10)
@given(systems, texts, st.lists(calling, min_size=1, max_size=3), closing)
def test_without_reasoning_both_ways_are_one_where_nothing_is_dropped(name, system, question, cycle, last):
    """Nothing stands beside a call for Llama, whose template drops it, and for Harmony, which makes it analysis."""
    plain = [
        Said("", "" if name in ("llama3", "gpt_oss") else said.text, said.cities[:1], None) for said in (*cycle, last)
    ]
    plan = [(question, plain[:-1], plain[-1])]
    exact, template = (play(SPEAKERS[name], RENDERERS[name, way], system, plan) for way in ("exact", "template"))
    assert exact.final == template.final


# -- one template each


def qwen3_cycle(questions: int) -> list[Any]:
    cycle = [Said("hm", "", ("Oslo", "Bergen"), None), Said("ah", "I see.", ("x",), None)]
    return [(f"{number}?", cycle, Said("so", "Rain.", (), None)) for number in range(questions)]


def test_as_the_template_has_it_reasoning_stays_until_the_next_question():
    speaker, renderer = SPEAKERS["qwen3"], RENDERERS["qwen3", "template"]
    done = play(speaker, renderer, None, qwen3_cycle(3))
    batch = packed(done)
    assert len(batch.row_lengths) == 4  # one a question, and the next prompt
    assert [speaker.text(seen).count("hm") for seen in done.seen] == [0, 1, 1] * 3
    assert "think" not in speaker.text(done.final)


def test_as_the_template_has_it_no_reply_of_qwq_keeps_its_reasoning():
    speaker = SPEAKERS["qwq"]
    done = play(speaker, RENDERERS["qwq", "template"], None, qwen3_cycle(1))
    assert [speaker.text(seen).count("hm") for seen in done.seen] == [0, 0, 0]
    assert all(speaker.text(seen).endswith("assistant\n<think>\n") for seen in done.seen)
    exact = play(speaker, RENDERERS["qwq", "exact"], None, qwen3_cycle(1))
    assert "<think>\nhm\n</think>\n\n<tool_call>" in speaker.text(exact.final)


def test_as_the_template_has_it_harmony_forgets_analysis_once_it_has_answered():
    speaker = SPEAKERS["gpt_oss"]
    done = play(speaker, RENDERERS["gpt_oss", "template"], None, qwen3_cycle(2))
    assert [speaker.text(seen).count("hm") for seen in done.seen] == [0, 1, 1, 0, 1, 1]
    assert "ah" not in speaker.text(done.final)


def test_a_reply_whose_reasoning_stays_keeps_its_very_ids():
    """Spelt token by token as no tokenizer would, so that any other spelling would show."""
    speaker, renderer = SPEAKERS["qwen3"], RENDERERS["qwen3", "template"]
    one = call("time", city="the")
    ids = (*(id for byte in "<think>\nthe\n</think>\n\n" for id in speaker.ids(byte)), speaker.end)
    reply: Message = {
        **{"role": "assistant", "content": "", "reasoning_content": "the"},
        **{"tool_calls": [one], "token_ids": ids},
    }  # type: ignore
    before = renderer.prompt([user("a")], speaker.tools)
    after = renderer.prompt([user("a"), reply, answer("b", one)], speaker.tools)
    assert after[: len(before) + len(ids)] == before + ids


def test_answers_of_harmony_bear_the_names_of_their_calls():
    speaker = SPEAKERS["gpt_oss"]
    calls = [call("weather", 0, city="a"), call("time", 1, city="b")]
    replies = [answer("rain", calls[0]), answer("noon", calls[1])]
    prompt = RENDERERS["gpt_oss", "exact"].prompt([user("?"), speaker.say("", "hm", calls), *replies], speaker.tools)
    tail = speaker.text(prompt).split("<|call|>")[-1]
    assert tail == (
        '<|start|>functions.weather to=assistant<|channel|>commentary<|message|>"rain"<|end|>'
        '<|start|>functions.time to=assistant<|channel|>commentary<|message|>"noon"<|end|><|start|>assistant'
    )


def test_the_markup_of_a_call_is_not_written_beside_the_sampled_call():
    calls = [call("weather", 0, city="a"), call("time", 1, city="b")]
    for name, speaker in SPEAKERS.items():
        messages = [user("?"), speaker.say("", "", calls), *(answer("!", one) for one in calls)]
        for way in ("exact", "template"):
            text = speaker.text(RENDERERS[name, way].prompt(messages, speaker.tools))
            assert text.count('"city": "a"') == 1, (name, way)


def test_answers_are_words_of_the_user_to_a_template_without_tools():
    speaker, one = SPEAKERS["gemma3"], call("weather", city="a")
    messages = [user("?"), speaker.say("", "", [one]), answer("rain", one), answer("wind", one), user("Well?")]
    text = speaker.text(RENDERERS["gemma3", "exact"].prompt(messages))
    assert text.endswith(
        "<end_of_turn>\n<start_of_turn>user\n<tool_response>\nrain\n</tool_response>\n<tool_response>\nwind\n"
        "</tool_response>\nWell?<end_of_turn>\n<start_of_turn>model\n"
    )


@pytest.mark.parametrize("name", [name for name in NAMES if name != "gemma3"])
def test_the_model_is_shown_the_tools(name):
    text = SPEAKERS[name].text(RENDERERS[name, "exact"].prompt([user("?")], SPEAKERS[name].tools))
    assert "weather" in text and "time" in text


def test_tools_that_a_template_cannot_show_are_refused():
    with pytest.raises(ValueError, match="shows no tools; describe them in the system message"):
        RENDERERS["gemma3", "exact"].prompt([user("?")], SPEAKERS["qwen3"].tools)


def test_a_conversation_that_the_template_refuses_is_a_sentence():
    with pytest.raises(ValueError, match="refuses the conversation: User and assistant must take turns"):
        RENDERERS["gemma3", "exact"].prompt([user("?"), user("!")])
    with pytest.raises(ValueError, match="cannot begin with a sampled reply"):
        RENDERERS["qwen3", "exact"].prompt([SPEAKERS["qwen3"].say("a")])
    with pytest.raises(ValueError, match="history is 'all'; choose exact or template"):
        Renderer(SPEAKERS["qwen3"].tokenizer, "all")  # type: ignore


def test_a_reply_that_called_may_end_with_the_end_of_message_of_llama():
    speaker, renderer, one = SPEAKERS["llama3"], RENDERERS["llama3", "exact"], call("weather", city="a")
    eom = speaker.tokenizer.convert_tokens_to_ids("<|eom_id|>")
    assert eom in renderer.stop_ids
    reply = speaker.say("", "", [one])
    reply["token_ids"] = (*tuple(reply.get("token_ids", ()))[:-1], eom)
    text = speaker.text(renderer.prompt([user("?"), reply, answer("rain", one)], speaker.tools))
    assert '}}<|eom_id|><|start_header_id|>ipython<|end_header_id|>\n\n"rain"<|eot_id|>' in text


def test_replies_of_harmony_stop_at_a_call_and_at_the_end_but_not_between_channels():
    convert = SPEAKERS["gpt_oss"].tokenizer.convert_tokens_to_ids
    assert RENDERERS["gpt_oss", "exact"].stop_ids == {convert("<|call|>"), convert("<|return|>")}
