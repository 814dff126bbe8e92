"""What the check of finished conversations finds, and what it does not."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from speakers import SPEAKERS, answer, call

from turnwise.render import Renderer
from turnwise.tokencheck import TokenCheck, check_tokens
from turnwise.types import Message

RENDERERS = {name: Renderer(one.tokenizer) for name, one in SPEAKERS.items()}
words = st.text(st.sampled_from("thing€😀é{}"), min_size=1, max_size=6)  # templates trim blanks


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def check(name: str, messages: list[Message], mode: Any = "strict", row: Any = None) -> TokenCheck:
    """Of the row that an agent would have made, unless another is given."""
    renderer, tools = RENDERERS[name], SPEAKERS[name].tools
    if row is None:
        *past, last = messages
        sampled = tuple(last.get("token_ids", ()))
        row = renderer.prompt(past, tools) + sampled if sampled else renderer.prompt(messages, tools)
    return check_tokens(renderer, messages, row, tools, mode)


asked = [call("weather", 0, city="Oslo"), call("time", 1, city="€")]


# What each template leaves as it was sampled: reasoning (r) that may stand in every reply, several calls (c), several
# questions (q). QwQ's leaves nothing: it opens reasoning before each reply, and shows none afterwards.
LEFT = {"qwen2_5": "cq", "qwen3": "rc", "llama3": "q", "gpt_oss": "", "gemma3": "rcq"}


@pytest.mark.parametrize("name", sorted(LEFT))
@settings(max_examples=15)
@given(words, st.lists(st.tuples(words, words), min_size=1, max_size=3), st.booleans())
def test_strict_finds_nothing_where_the_template_writes_what_was_sampled(name, system, exchanges, more):
    speaker, left = SPEAKERS[name], LEFT[name]
    calls = asked if "c" in left else asked[:1]
    messages: list[Message] = [{"role": "system", "content": system}]
    for question, said in exchanges if "q" in left else exchanges[:1]:
        thought = "hm" if "r" in left else ""
        messages += [user(question), speaker.say("", thought, calls), *(answer(said, one) for one in calls)]
        messages.append(speaker.say(said, thought))
    if more and "q" in left:
        messages.append(user("And?"))
    elif more:
        messages.pop()
    assert check(name, messages) == TokenCheck(False)


@pytest.mark.parametrize("name", ["qwen3", "gpt_oss", "qwq"])
def test_reasoning_that_a_template_strips_is_found(name):
    speaker = SPEAKERS[name]
    messages = [user("a"), speaker.say("b", "hmm"), user("c"), speaker.say("d", "hmm")]
    for mode in ("strict", "ignore_strippable"):
        found = check(name, messages, mode)
        assert found.differs and "hmm" in found.message and found.characters > 3


def test_an_empty_block_of_reasoning_that_nobody_sampled_is_found():
    found = check("qwen3", [user("a"), SPEAKERS["qwen3"].say("b")])
    assert found.characters == len("<think>\n\n</think>\n\n")


def test_the_end_of_an_answer_is_another_in_the_history_of_harmony():
    speaker = SPEAKERS["gpt_oss"]
    found = check("gpt_oss", [user("a"), speaker.say("b"), user("c")])
    assert "b<|return|>" in found.message and "b<|end|>" in found.message


# -- the examples of the three modes


def test_a_missing_line_break_is_white_space():
    speaker, renderer = SPEAKERS["qwen2_5"], RENDERERS["qwen2_5"]
    messages = [user("a"), speaker.say("b"), user("c")]
    row = renderer.prompt(messages, speaker.tools)
    text = speaker.text(row)
    broken = speaker.ids(text.replace("b<|im_end|>\n", "b<|im_end|>"))
    found = check("qwen2_5", messages, row=broken)
    assert (found.differs, found.characters) == (True, 1)
    assert found.message == (r"'<|im_end|><|im_start' was read where the template writes '<|im_end|>\n<|im_start'")
    assert check("qwen2_5", messages, "ignore_strippable", broken) == TokenCheck(False)
    assert check("qwen2_5", messages, "disable", broken) == TokenCheck(False)


def test_blanks_after_a_reply_are_white_space():
    reply = SPEAKERS["llama3"].say("hello  ")
    messages = [user("a"), reply, user("b")]
    assert check("llama3", messages).characters == 2
    assert check("llama3", messages, "ignore_strippable") == TokenCheck(False)


def test_white_space_that_moved_is_white_space():
    messages = [user("a"), {**SPEAKERS["qwen2_5"].say("x  y z"), "content": "x y  z"}]
    assert check("qwen2_5", messages).differs  # type: ignore
    assert check("qwen2_5", messages, "ignore_strippable") == TokenCheck(False)  # type: ignore


def test_a_changed_word_is_quoted_with_ten_characters_around_it_and_blanks_before_it_are_passed_over():
    said = "one two three four five six"
    replies = [SPEAKERS["qwen2_5"].say("blank "), SPEAKERS["qwen2_5"].say(said)]
    replies[0]["content"], replies[1]["content"] = "blank", said.replace("four", "4")
    messages = [user("a"), replies[0], user("b"), replies[1]]
    assert check("qwen2_5", messages).characters == 5
    found = check("qwen2_5", messages, "ignore_strippable")
    assert found.characters == 4
    assert found.message == "'two three four five six<' was read where the template writes 'two three 4 five six<'"


def test_other_tokens_of_the_same_text_are_found_by_strict_alone():
    speaker = SPEAKERS["qwen2_5"]
    spelt = tuple(id for letter in "the" for id in speaker.ids(letter))
    reply: Message = {"role": "assistant", "content": "the", "token_ids": (*spelt, speaker.end)}
    found = check("qwen2_5", [user("a"), reply])
    assert found.differs and found.characters == 0
    assert "the text is the same" in found.message and "'t'" in found.message and "'the'" in found.message
    assert check("qwen2_5", [user("a"), reply], "ignore_strippable") == TokenCheck(False)


def test_broken_characters_are_found():
    speaker = SPEAKERS["qwen2_5"]
    reply = speaker.cut(speaker.say("a😀"), 2)
    assert "\ufffd" in reply["content"]
    assert check("qwen2_5", [user("a"), reply]).differs


def test_a_long_difference_is_quoted_in_part():
    found = check("qwen3", [user("a"), SPEAKERS["qwen3"].say("b", "hm " * 500), user("c")])
    assert found.characters > 1500 and len(found.message) < 300


def test_a_conversation_that_the_template_refuses_with_its_reply_differs():
    begun: Message = {"role": "assistant", "content": "Well"}
    found = check("gemma3", [user("a"), begun, SPEAKERS["gemma3"].say("b")])
    assert found.differs and "must take turns" in found.message


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="the mode of the token check is 'loose'; choose strict"):
        check("qwen3", [user("a")], "loose")
