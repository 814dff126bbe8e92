"""Schemas in both spellings, what tools may return, and how long replies are cut."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from turnwise.tools import Shorten, ToolResponse, ToolSchema
from turnwise.tools.returns import normalise
from turnwise.tools.validate import validator

FLAT = {"name": "search", "description": "Find pages", "parameters": {"type": "object", "properties": {}}}


def test_both_spellings_are_one_schema():
    nested = {"type": "function", "function": FLAT}
    assert ToolSchema.of(FLAT) == ToolSchema.of(nested)
    assert ToolSchema.of(FLAT).openai == nested


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({**FLAT, "name": "two words"}, "the tool name 'two words' cannot be used"),
        ({**FLAT, "name": "x" * 65}, "cannot be used"),
        ({**FLAT, "name": None}, "cannot be used"),
        ({**FLAT, "description": 3}, "its description is 3"),
        ({**FLAT, "parameters": {"type": "array"}}, "`type: object`"),
        ({**FLAT, "parameters": {"type": "object", "properties": {"a": {"type": "text"}}}}, "no JSON Schema"),
        ({**FLAT, "parametres": {}}, "unknown key tool_schema.parametres; did you mean 'parameters'"),
        ({"type": "tool", "function": FLAT}, "a nested tool_schema is"),
        ({"function": FLAT, "name": "search"}, "a nested tool_schema is"),
        ("search", "tool_schema is 'search'"),
    ],
)
def test_a_wrong_schema_is_refused_in_one_sentence(tree: Any, said: str):
    with pytest.raises(ValueError, match=r"^(?!.*\n)") as refusal:
        ToolSchema.of(tree)
    assert said in str(refusal.value)


PICTURE = np.zeros((2, 2, 3))

# returned, text, image, reward, metrics, and what verl makes of it where it differs
RETURNS = [
    (ToolResponse("a"), "a", None, 0.0, {}, ""),
    ("a", "a", None, 0.0, {}, ""),
    ({"ö": 1}, '{"ö": 1}', None, 0.0, {}, ""),
    (("a",), "a", None, 0.0, {}, ""),
    (("a", 1), "a", None, 1.0, {}, ""),
    (("a", None), "a", None, 0.0, {}, ""),
    (("a", 0), "a", None, 0.0, {}, ""),
    (("a", False), "a", None, 0.0, {}, ""),
    (("a", 0.5, {"hits": 2}), "a", None, 0.5, {"hits": 2}, ""),
    (("a", None, None), "a", None, 0.0, {}, ""),
    (({"a": 1}, 1), '{"a": 1}', None, 1.0, {}, ""),
    ([1, 2], "[1, 2]", None, 0.0, {}, "str() of it"),
    (None, "null", None, 0.0, {}, "None"),
    (True, "true", None, 0.0, {}, "True"),
    (2, "2", None, 0.0, {}, ""),
    (1.5, "1.5", None, 0.0, {}, ""),
    ({1}, "{1}", None, 0.0, {}, ""),
    ({"a": {1}}, '{"a": "{1}"}', None, 0.0, {}, "TypeError"),
    (b"png", None, [b"png"], 0.0, {}, "str() of it"),
    (PICTURE, None, [PICTURE], 0.0, {}, "str() of it"),
]


@pytest.mark.parametrize(("value", "text", "image", "reward", "metrics", "richer"), RETURNS, ids=lambda x: str(x)[:30])
def test_what_a_tool_may_return(value, text, image, reward, metrics, richer):
    response, found, figures = normalise(value)
    assert (response.text, found, figures) == (text, reward, metrics)
    assert type(found) is float
    assert (response.image or [None])[0] is (image or [None])[0]


@pytest.mark.parametrize(
    "value",
    [(), ("a", 0, {}, 1), ("a", float("nan")), ("a", float("inf")), ("a", "much"), ("a", 0, [1]), ("a", object())],
)
def test_what_a_tool_may_not_return(value: Any):
    with pytest.raises((TypeError, ValueError)):
        normalise(value)


def test_pictures_come_in_lists():
    with pytest.raises(ValidationError):
        ToolResponse(image="a")  # type: ignore[arg-type]
    assert ToolResponse().is_empty()
    assert ToolResponse("a").is_text_only()
    assert not ToolResponse("a", image=[b""]).is_text_only()
    assert not ToolResponse(image=[b""]).is_empty()


@pytest.mark.parametrize(
    ("side", "limit", "shown", "richer"),
    [
        ("left", 10, "(truncated)...klmnopqrst", ""),
        ("right", 10, "abcdefghij...(truncated)", ""),
        ("middle", 10, "abcde...(truncated)...pqrst", ""),
        ("middle", 11, "abcde...(truncated)...pqrst", ""),
        ("left", 20, "abcdefghijklmnopqrst", ""),
        ("middle", 20, "abcdefghijklmnopqrst", ""),
        ("left", 0, "(truncated)...", "verl keeps the whole text"),
        ("right", 0, "...(truncated)", ""),
        ("middle", 0, "...(truncated)...", "verl keeps the whole text"),
        ("middle", 1, "...(truncated)...", "verl keeps the whole text"),
        ("left", 1, "(truncated)...t", ""),
        ("right", 1, "a...(truncated)", ""),
    ],
)
def test_a_long_reply_is_cut(side: Any, limit: int, shown: str, richer: str):
    assert Shorten(limit, side)("abcdefghijklmnopqrst") == shown


def words(text: str) -> list[str]:
    return text.split(" ")


@given(st.lists(st.text(st.characters(blacklist_characters=" "), max_size=5), min_size=1, max_size=30).map(" ".join))
def test_tokens_are_counted_and_not_characters(text: str):
    count = len(words(text))
    for side in ("left", "right", "middle"):
        shown = Shorten(4, side, words, " ".join)(text)
        kept = shown.replace("(truncated)...", "").replace("...(truncated)", "")
        assert (shown == text) if count <= 4 else len(words(kept)) <= 5  # the middle mark may join two words


def test_a_character_cut_into_bytes_leaves_no_half():
    shorten = Shorten(4, "middle", lambda text: list(text.encode()), lambda ids: bytes(ids).decode(errors="replace"))
    assert shorten("aéöb") == "a...(truncated)...b"


def test_of_a_huge_reply_only_the_ends_are_tokenised():
    seen: list[int] = []

    def encode(text: str) -> list[str]:
        seen.append(len(text))
        return list(text)

    assert Shorten(100, "middle", encode)("x" * 10_000_000).count("x") == 100
    assert sum(seen) < 10_000


def test_the_limit_and_the_side_are_checked():
    with pytest.raises(ValueError, match="limit is -1"):
        Shorten(-1)
    with pytest.raises(ValueError, match="side is 'top'"):
        Shorten(1, "top")  # type: ignore[arg-type]


def test_arguments_are_checked_against_a_schema():
    check = validator(
        {
            "type": "object",
            "properties": {
                "a": {"type": "integer", "nullable": True},
                "b": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["a"],
        }
    )
    check({"a": None, "b": ["x"]})
    with pytest.raises(ValueError, match=r"^.*'b'.*; b.0: 1 is not of type 'string'$|^.*'a' is a required.*b\.0.*$"):
        check({"b": [1]})
    with pytest.raises(ValueError, match="'c' was unexpected"):
        check({"a": 1, "c": json.dumps({})})


def test_a_schema_cannot_make_us_fetch_anything():
    check = validator({"type": "object", "properties": {"a": {"$ref": "http://localhost:9/schema.json"}}})
    with pytest.raises(Exception, match=r"[Uu]nresolvable"):
        check({"a": 1})
