"""One row a behaviour: what a reply means in each format. The last column says what peers make of it, where it differs.

The peers are verl 0.9.1 (read and run for our reference) and the `renderers` library 0.1.12 (read).
"""

from typing import Any, NamedTuple

import pytest

from turnwise.toolcalls import FORMATS, Reply, ToolCall, decode_reply, find_format

TOOLS = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
    },
    "switch": {
        "type": "object",
        "properties": {
            "on": {"type": "boolean"},
            "level": {"type": "number", "nullable": True},
            "where": {"type": ["string", "integer"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "mode": {"enum": ["fast", 2]},
            "anything": {},
        },
    },
}
OSLO, BERGEN = {"city": "Oslo", "days": 2}, {"city": "Bergen", "days": 1}


class Row(NamedTuple):
    behaviour: str
    text: str
    content: str = ""
    reasoning: str = ""
    calls: tuple[Any, ...] = ()  # arguments of a good call of get_weather, or the status of another
    richer: str = ""  # what peers do


def hermes(city: str = "Oslo", days: Any = 2) -> str:
    return f'<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "{city}", "days": {days}}}}}\n</tool_call>'


def coder(days: str = "2", city: str = "Oslo") -> str:
    return (
        f"<tool_call>\n<function=get_weather>\n<parameter=city>\n{city}\n</parameter>\n"
        f"<parameter=days>\n{days}\n</parameter>\n</function>\n</tool_call>"
    )


LLAMA = '{"name": "get_weather", "parameters": {"city": "Oslo", "days": 2}}'
HARMONY = (
    '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Oslo", "days": 2}<|call|>'
)

ROWS = {
    "hermes": [
        Row("one call", hermes(), calls=(OSLO,)),
        Row(
            "reasoning, text and two calls",
            f"<think>rain?</think>Checking.\n{hermes()}\n{hermes('Bergen', 1)}<|im_end|>",
            "Checking.",
            "rain?",
            (OSLO, BERGEN),
            "verl keeps the end token in the content",
        ),
        Row("text after a call is kept", f"{hermes()}\nDone.", "Done.", calls=(OSLO,), richer="renderers drops it"),
        Row(
            "an opening tag alone",
            "Use <tool_call> tags like this.<|im_end|>",
            "Use",
            calls=("unclosed_block",),
            richer="verl: no call, the episode ends",
        ),
        Row(
            "a tag in prose does not spoil the call after it",
            f"Use <tool_call> thus: {hermes()}",
            "Use",
            calls=("unclosed_block", OSLO),
            richer="renderers: both are one block of invalid JSON",
        ),
        Row("no JSON", "<tool_call>{bad}</tool_call>", calls=("invalid_json",), richer="verl skips it"),
        Row("NaN is not JSON", hermes(days="NaN"), calls=("invalid_json",), richer="renderers accepts it"),
        Row(
            "nor is a number beyond a float",
            hermes(days="1e999"),
            calls=("invalid_json",),
            richer="renderers accepts it",
        ),
        Row("no name", '<tool_call>{"arguments": {}}</tool_call>', calls=("missing_name",), richer="verl skips it"),
        Row("a list instead of an object", "<tool_call>[1]</tool_call>", calls=("malformed_structure",)),
        Row(
            "arguments as JSON in a string",
            '<tool_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"Oslo\\", \\"days\\": 2}"}</tool_call>',
            calls=(OSLO,),
            richer="both pass the string on",
        ),
        Row(
            "an argument that stands twice",
            '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo", "city": "Bergen"}}</tool_call>',
            calls=("invalid_json",),
            richer="both heed the last one alone",
        ),
        Row(
            "arguments in a list",
            '<tool_call>{"name": "get_weather", "arguments": [1]}</tool_call>',
            calls=("invalid_arguments",),
            richer="both pass the list on",
        ),
        Row(
            "no arguments are no arguments",
            '<tool_call>{"name": "get_weather", "arguments": null}</tool_call>',
            calls=({},),
        ),
        Row(
            "a name that no tool has",
            '<tool_call>{"name": "sing", "arguments": {}}</tool_call>',
            calls=("unknown_tool",),
            richer="renderers says ok",
        ),
        Row(
            "the closing tag inside a string",
            hermes("</tool_call>"),
            calls=({"city": "</tool_call>", "days": 2},),
            richer="regular expressions end the block there",
        ),
        Row("text after the object", hermes().replace("\n</", " and\n</"), calls=("invalid_json",)),
        Row(
            "nesting without end",
            '<tool_call>{"a":' + "[" * 90_000 + "</tool_call>",
            calls=("invalid_json",),
            richer="renderers raises RecursionError",
        ),
        Row(
            "a number without end",
            hermes(days="9" * 9000),
            calls=("invalid_json",),
            richer="renderers raises ValueError",
        ),
        Row(
            "calls in finished reasoning",
            f"<think>{hermes()}</think>No.",
            "No.",
            hermes(),
            richer="verl executes them",
        ),
        Row(
            "arguments under another name",
            hermes().replace("arguments", "parameters"),
            calls=("malformed_structure",),
        ),
        Row("calls in unfinished reasoning", f"<think>{hermes()}", "", hermes(), richer="verl executes them"),
        Row(
            "reasoning that the prompt opened",
            f"{hermes()}</think>{hermes('Bergen', 1)}",
            "",
            hermes(),
            (BERGEN,),
            "verl executes both",
        ),
        Row("a tag of reasoning inside a call", hermes("<think>"), calls=({"city": "<think>", "days": 2},)),
    ],
    "qwen3_coder": [
        Row("one call, typed by the schema", coder(), calls=(OSLO,)),
        Row("text around it", f"So.\n{coder()}\nDone.<|im_end|>", "So.\nDone.", calls=(OSLO,)),
        Row("accents and spaces", coder(city="San José"), calls=({"city": "San José", "days": 2},)),
        Row("text in the place of a number", coder("three"), calls=({"city": "Oslo", "days": "three"},)),
        Row("digits in the place of text", coder(city="12"), calls=({"city": "12", "days": 2},)),
        Row(
            "null where it is not allowed",
            coder("null"),
            calls=({"city": "Oslo", "days": "null"},),
            richer="verl: None",
        ),
        Row("blanks count", coder(city="    x"), calls=({"city": "    x", "days": 2},), richer="renderers strips them"),
        Row("several lines", coder(city="a\n\n b"), calls=({"city": "a\n\n b", "days": 2},)),
        Row(
            "the closing tag inside a value",
            coder(city="</parameter> x"),
            calls=({"city": "</parameter> x", "days": 2},),
            richer="renderers ends the value there",
        ),
        Row(
            "no tag around the function",
            coder().replace("<tool_call>\n", "").replace("\n</tool_call>", "") + "\nDone.",
            "Done.",
            calls=(OSLO,),
        ),
        Row(
            "unclosed, but the model stopped there",
            "<function=get_weather><parameter=city>Oslo",
            calls=({"city": "Oslo"},),
        ),
        Row("a parameter is not closed", coder().replace("</parameter>", "", 1), calls=("malformed_structure",)),
        Row("no function", "<tool_call>\n<parameter=a>1</parameter></tool_call>", calls=("malformed_structure",)),
        Row("no name", "<tool_call><function=></function></tool_call>", calls=("missing_name",)),
        Row("a name that no tool has", coder().replace("get_weather", "sing"), calls=("unknown_tool",)),
        Row("JSON instead", hermes(), calls=("malformed_structure",)),
        Row("prose with the tag", "Use <tool_call> tags.", "Use", calls=("unclosed_block",)),
        Row("calls in reasoning", f"<think>{coder()}</think>{coder()}", "", coder(), (OSLO,)),
    ],
    "llama3_json": [
        Row("one call", f"{LLAMA}<|eot_id|>", calls=(OSLO,)),
        Row(
            "two calls after the tag",
            f"<|python_tag|>{LLAMA}; {LLAMA.replace('Oslo', 'Bergen').replace('2', '1')}<|eom_id|>",
            calls=(OSLO, BERGEN),
            richer="renderers takes them for content",
        ),
        Row("JSON inside an answer", 'The record is {"city": "Oslo"}.<|eot_id|>', 'The record is {"city": "Oslo"}.'),
        Row("JSON as the answer", '{"city": "Oslo"}', '{"city": "Oslo"}'),
        Row("a call inside an answer", f"{LLAMA} is the call.", f"{LLAMA} is the call."),
        Row("`arguments` instead of `parameters`", LLAMA.replace("parameters", "arguments"), calls=(OSLO,)),
        Row("with its type", LLAMA.replace("{", '{"type": "function", ', 1), calls=(OSLO,)),
        Row("broken JSON", LLAMA[:-1], calls=("invalid_json",), richer="renderers: content, and the episode ends"),
        Row("the second is broken", f"{LLAMA}; {{bad", calls=(OSLO, "invalid_json")),
        Row("no name after the tag", "<|python_tag|>{}", calls=("missing_name",)),
        Row("code after the tag", "<|python_tag|>print(1)", calls=("invalid_json",)),
        Row("text after a tagged call", f"<|python_tag|>{LLAMA} so", calls=("malformed_structure",)),
        Row("a name that no tool has", LLAMA.replace("get_weather", "sing"), calls=("unknown_tool",)),
        Row("a call after reasoning", f"<think>hm</think>\n{LLAMA}", "", "hm", (OSLO,)),
        Row("a call in reasoning", f"<think>{LLAMA}</think>\nNo.", "No.", LLAMA),
    ],
    "gpt_oss": [
        Row("a call as the first message", HARMONY, calls=(OSLO,), richer="verl does not find it"),
        Row(
            "reasoning and a call",
            f"<|channel|>analysis<|message|>Need weather.<|end|><|start|>assistant{HARMONY}",
            "",
            "Need weather.",
            (OSLO,),
        ),
        Row("an answer", "<|channel|>final<|message|>Two degrees.<|return|>", "Two degrees."),
        Row(
            "the recipient before the channel",
            f"<|start|>assistant to=functions.get_weather{HARMONY.replace(' to=functions.get_weather', '')}",
            calls=(OSLO,),
            richer="verl does not find it",
        ),
        Row(
            "no type of content",
            HARMONY.replace(" <|constrain|>json", ""),
            calls=(OSLO,),
            richer="verl does not find it",
        ),
        Row("the stop token left out", HARMONY.removesuffix("<|call|>"), calls=(OSLO,)),
        Row(
            "two calls, and a preamble",
            f"<|channel|>commentary<|message|>Both.<|end|><|start|>assistant{HARMONY}<|start|>assistant{HARMONY}",
            "Both.",
            calls=(OSLO, OSLO),
        ),
        Row("no JSON", HARMONY.replace("{", ""), calls=("invalid_json",)),
        Row("arguments in a list", HARMONY.replace("{", "[{").replace("}", "}]"), calls=("invalid_arguments",)),
        Row("a name that no tool has", HARMONY.replace("get_weather", "sing"), calls=("unknown_tool",)),
        Row("no name", HARMONY.replace("get_weather", ""), calls=("missing_name",)),
        Row("a header alone", "<|channel|>commentary to=functions.get_weather", calls=("unclosed_block",)),
        Row("a call on the wrong channel", HARMONY.replace("commentary", "analysis"), calls=("malformed_structure",)),
        Row(
            "a call quoted in the reasoning",
            f"<|channel|>analysis<|message|>to=functions.get_weather {OSLO}<|end|>",
            "",
            f"to=functions.get_weather {OSLO}",
        ),
        Row("plain text", "Hello", "Hello"),
        Row("a tool's answer, made up", "<|start|>functions.get_weather to=assistant<|message|>Rain<|end|>"),
    ],
}


@pytest.mark.parametrize(
    ("name", "row"),
    [(name, row) for name, rows in ROWS.items() for row in rows],
    ids=lambda x: getattr(x, "behaviour", x),
)
def test_what_a_reply_means(name: str, row: Row):
    found = FORMATS[name].parse(Reply(row.text), TOOLS)
    calls = tuple(call.arguments if call.status == "ok" else call.status for call in found.calls)
    assert (found.content, found.reasoning, calls) == (row.content, row.reasoning, row.calls)
    assert all(call.name == "get_weather" for call in found.calls if call.status == "ok")
    assert all(call.flaw for call in found.calls if call.status != "ok")


@pytest.mark.parametrize(
    ("name", "text"), [("hermes", hermes()), ("qwen3_coder", coder()), ("llama3_json", LLAMA), ("gpt_oss", HARMONY)]
)
class TestEveryFormat:
    def test_the_span_is_the_call_with_its_markup(self, name: str, text: str):
        before = "<|channel|>final<|message|>I look.<|end|>" if name == "gpt_oss" else "<think>I look.</think>"
        (call,) = FORMATS[name].parse(Reply(before + text), TOOLS).calls
        assert (before + text)[slice(*call.span)] == text

    def test_without_tools_no_name_is_unknown(self, name: str, text: str):
        (call,) = FORMATS[name].parse(Reply(text.replace("get_weather", "sing")), None).calls
        assert (call.name, call.status) == ("sing", "ok")

    def test_cut_by_the_length_limit_no_call_is_made(self, name: str, text: str):
        for end in range(1, len(text)):
            found = FORMATS[name].parse(Reply(text[:end], stopped=False), TOOLS)
            assert all(call.status != "ok" for call in found.calls)

    def test_nothing_is_called_while_the_model_still_thinks(self, name: str, text: str):
        quoted = text if name != "gpt_oss" else text.replace("<|", "<")
        found = FORMATS[name].parse(Reply(quoted, thinking=True), TOOLS)
        assert (found.calls, found.reasoning_complete) == ((), False)
        assert found.reasoning == quoted

    def test_its_own_example_is_a_call(self, name: str, text: str):
        (call,) = FORMATS[name].parse(Reply(FORMATS[name].example), None).calls
        assert (call.name, call.arguments, call.status, call.flaw) == ("tool", {"key": "value"}, "ok", "")

    def test_markup_that_was_spelt_and_not_sampled_calls_nothing(self, name: str, text: str):
        markup = FORMATS[name].markup
        quoted = Reply(text, tokens=dict.fromkeys(markup, frozenset()))
        if name == "llama3_json":  # whose calls need no markup
            quoted = Reply("<|python_tag|>" + text, tokens=quoted.tokens)
        found = FORMATS[name].parse(quoted, TOOLS)
        assert [call.status for call in found.calls if call.status == "ok" and not call.flaw] == []


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("on", "true", True),
        ("on", "True", "True"),  # which validation refuses; verl makes False of it
        ("on", "yes", "yes"),
        ("level", "2", 2),
        ("level", "1.5", 1.5),
        ("level", "null", None),
        ("where", "hall", "hall"),
        ("where", "7", 7),
        ("tags", '["a"]', ["a"]),
        ("tags", "a", "a"),
        ("mode", "fast", "fast"),
        ("mode", "2", 2),
        ("anything", '{"a": 1}', {"a": 1}),
        ("anything", "null", None),
        ("anything", "free text", "free text"),
        ("not_there", "3", 3),
    ],
)
def test_a_value_gets_its_type_from_the_schema(key: str, text: str, value: Any):
    reply = f"<tool_call><function=switch><parameter={key}>{text}</parameter></function></tool_call>"
    (call,) = FORMATS["qwen3_coder"].parse(Reply(reply), TOOLS).calls
    assert call.arguments == {key: value}
    assert type(call.arguments[key]) is type(value)


def test_tokens_tell_a_sampled_tag_from_a_spelt_one():
    vocabulary = {1: "<tool_call>", 2: "</tool_call>"}
    body = '{"name": "get_weather", "arguments": {"city": "<tool_call>", "days": 2}}'
    ids = [*map(ord, "<tool_call>"), 1, *map(ord, body), 2]  # ids below 10 are tags, the others letters
    reply = decode_reply(ids, vocabulary, lambda run: "".join(map(chr, run)))
    assert reply.text == f"<tool_call><tool_call>{body}</tool_call>"
    found = FORMATS["hermes"].parse(reply, TOOLS)
    assert found.content == "<tool_call>"
    assert found.calls == (ToolCall("get_weather", {"city": "<tool_call>", "days": 2}, "ok", (11, len(reply.text))),)


def test_a_tolerated_call_says_what_was_wrong():
    (call,) = FORMATS["qwen3_coder"].parse(Reply("<function=get_weather><parameter=city>Oslo"), TOOLS).calls
    assert (call.status, call.flaw) == ("ok", "</tool_call> is missing")
    (call,) = FORMATS["gpt_oss"].parse(Reply(HARMONY.replace("<|call|>", "<|end|>")), TOOLS).calls
    assert (call.status, call.flaw) == ("ok", "it did not end with <|call|>")


def test_a_format_has_the_names_that_others_give_it():
    assert find_format("qwen3").name == "hermes"
    assert find_format("harmony").name == find_format("gpt-oss").name == "gpt_oss"
    with pytest.raises(ValueError, match="tool format 'hermess' is unknown; did you mean 'hermes'"):
        find_format("hermess")


@pytest.mark.parametrize(
    ("name", "text", "content"),
    [
        ("hermes", "<think>Why?</think>\nSay <tool_call>{}</tool_call>.", "Say <tool_call>{}</tool_call>."),
        ("qwen3_coder", "<think>Why?</think>\n<function=a></function>", "<function=a></function>"),
        ("llama3_json", '<think>Why?</think>\n{"name": "a"}', '{"name": "a"}'),
        ("gpt_oss", "<|channel|>analysis<|message|>Why?<|end|><|start|>assistant<|channel|>final<|message|>So.", "So."),
        ("gpt_oss", "So.", "So."),
    ],
)
def test_where_nothing_can_be_called_only_reasoning_stands_apart(name: str, text: str, content: str):
    found = FORMATS[name].split(Reply(text))
    assert (found.content, found.calls) == (content, ())
    assert found.reasoning == ("Why?" if "Why?" in text else "")
