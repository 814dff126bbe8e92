"""Rows in both spellings become the same samples."""

import json
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.data.samples import to_sample
from turnwise.types import Sample

PROMPT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Two plus two?"}]
KWARGS = {"calc": {"create_kwargs": {"ground_truth": "4"}}}
NESTED = {
    "data_source": "sums",
    "agent_name": "tool_agent",
    "prompt": PROMPT,
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "4"},
    "extra_info": {
        "index": 7,
        "need_tools_kwargs": True,
        "tools_kwargs": KWARGS,
        "interaction_kwargs": {"name": "gsm8k"},
        "tool_selection": ["calc"],
    },
}
FLAT = {
    "data_source": "sums",
    "agent_name": "tool_agent",
    "prompt": PROMPT,
    "ability": "math",
    "ground_truth": "4",
    "tools_kwargs": KWARGS,
    "interaction_kwargs": {"name": "gsm8k"},
    "tool_selection": ["calc"],
    "index": 7,
    "need_tools_kwargs": True,
}


def sample(row: dict[str, Any], **more: Any) -> Sample:
    return to_sample("rows.jsonl, line 3", row, 5, **more)


def test_both_spellings_are_the_same_sample():
    assert (
        sample(NESTED)
        == sample(FLAT)
        == Sample(
            index=5,
            prompt=tuple(PROMPT),  # type: ignore[arg-type]  # plain dicts
            agent="tool_agent",
            data_source="sums",
            ground_truth="4",
            tools=("calc",),
            tools_kwargs=KWARGS,
            interaction_kwargs={"name": "gsm8k"},
            extra={"ability": "math", "index": 7, "need_tools_kwargs": True},
            place="rows.jsonl, line 3",
        )
    )


def test_calls_of_a_prompt_may_have_their_arguments_as_text():
    def call(arguments: Any) -> Any:
        return {"id": "c1", "type": "function", "function": {"name": "add", "arguments": arguments}}

    asked = {"role": "user", "content": "Go on.", "tool_calls": None, "name": None}  # as Parquet has it
    for content in ({"content": ""}, {"content": None}, {}):
        said = {"role": "assistant", **content, "tool_calls": [call('{"a": 1}')]}
        assert sample({"prompt": [said, asked]}).prompt == (
            {"role": "assistant", "content": "", "tool_calls": [call({"a": 1})]},
            {"role": "user", "content": "Go on."},
        )


def test_a_row_is_not_changed():
    row = json.loads(json.dumps(NESTED))
    sample(row)
    assert row == NESTED


def test_both_spellings_at_once_may_agree():
    assert sample({**NESTED, "ground_truth": "4"}) == sample(NESTED)


def test_a_text_is_one_message_of_the_user_from_the_column_that_the_recipe_says():
    found = sample({"question": "Why?", "prompt": "kept"}, prompt_key="question")
    assert found.prompt == ({"role": "user", "content": "Why?"},)
    assert found.extra == {"prompt": "kept"}


def test_no_selection_is_every_tool_and_an_empty_one_is_none():
    assert sample({"prompt": "a"}).tools is None
    assert sample({"prompt": "a", "tool_selection": []}).tools == ()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(JSON, st.dictionaries(st.text(max_size=3), JSON, max_size=3))
def test_json_can_say_a_whole_sample(truth, others):
    found = sample({**others, "prompt": "a", "ground_truth": truth})
    again = json.loads(json.dumps(asdict(found), allow_nan=False))
    assert (again["ground_truth"], again["extra"]) == (truth, others)


ODD = st.none() | st.integers() | st.just([]) | st.just([1]) | st.just({"a": 1}) | st.just([{"role": "user"}])


@given(st.sampled_from(sorted({*NESTED, *FLAT})), ODD)
def test_a_wrong_value_is_a_sample_or_one_sentence(column, value):
    try:
        sample({**NESTED, column: value})
    except ValueError as error:
        assert str(error).startswith("rows.jsonl, line 3, ") and len(str(error).splitlines()) == 1


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"question": "a"}, ["column prompt is missing", "question", "data.prompt_key"]),
        ({"prompt": []}, ["column prompt is []"]),
        ({"prompt": 3}, ["column prompt is 3", "list of messages"]),
        ({"prompt": [{"role": "robot", "content": "a"}]}, ["message 1", "'robot'", "user"]),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}]}, ["message 1", "text"]),
        ({"prompt": [{"role": "user", "content": "a", "token_ids": [1]}]}, ["message 1", "token_ids"]),
        ({"prompt": [{"role": "assistant", "content": "a"}]}, ["ends with", "assistant"]),
        ({"prompt": [{"role": "assistant", "tool_calls": "x"}]}, ["message 1", "tool_calls 'x'", "arguments"]),
        ({"prompt": [{"role": "assistant", "tool_calls": [{"name": "f"}]}]}, ["message 1", "tool_calls [{'name'"]),
        ({"prompt": [{"role": "user", "tool_calls": [{"function": {"name": "f", "arguments": "a"}}]}]}, ["write ["]),
        ({"prompt": [{"role": "user", "tool_calls": [{"function": {"name": 3}}]}]}, ["message 1", "write ["]),
        ({"prompt": "\ud800"}, ["column prompt", "JSON"]),
        ({"prompt": "a", "image": b"png"}, ["column image", "JSON", "leave the column out"]),
        ({"prompt": "a", "weight": float("nan")}, ["column weight", "JSON"]),
        ({"prompt": "a", "tool_selection": "calc"}, ["tool_selection is 'calc'", "list"]),
        ({"prompt": "a", "tools_kwargs": {"calc": 3}}, ["tools_kwargs.calc is 3"]),
        ({"prompt": "a", "extra_info": "x"}, ["extra_info is 'x'"]),
        ({"prompt": "a", "agent_name": 3}, ["agent_name is 3"]),
        ({"prompt": "a", "ground_truth": 1, "reward_model": {"ground_truth": 2}}, ["ground_truth", "differ"]),
        ({"prompt": "a", "level": 1, "extra_info": {"level": 2}}, ["level", "differ"]),
    ],
)
def test_a_mistake_names_the_place_the_column_and_the_remedy(row, words):
    with pytest.raises(ValueError) as caught:
        sample(row)
    message = str(caught.value)
    assert message.startswith("rows.jsonl, line 3, ")
    assert [word for word in words if word not in message] == [], message
