"""No text makes a reader of replies raise, execute what it should not, or point outside the text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.fuzz_toolcalls import PIECES, TOOLS, problem
from turnwise.toolcalls import FORMATS, Reply

HERMES = '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>'
CODER = "<tool_call><function=get_weather><parameter=city>Oslo</parameter></function></tool_call>"
HARMONY = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Oslo"}<|call|>'

# Each is an attempt at a call that must be reported, and not made.
MALFORMED = {
    "hermes": [
        "<tool_call>",
        "<tool_call></tool_call>",
        "<tool_call> </tool_call>",
        "<tool_call>{</tool_call>",
        "<tool_call>}</tool_call>",
        "<tool_call>{}</tool_call>",
        "<tool_call>[]</tool_call>",
        "<tool_call>null</tool_call>",
        '<tool_call>"get_weather"</tool_call>',
        "<tool_call>get_weather(city='Oslo')</tool_call>",
        "<tool_call>{'name': 'get_weather', 'arguments': {}}</tool_call>",
        '<tool_call>{"name": 1, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "get_weather", "arguments": 1}</tool_call>',
        '<tool_call>{"name": "get_weather", "arguments": "Oslo"}</tool_call>',
        '<tool_call>{"name": "get_weather", "arguments": {}},</tool_call>',
        '<tool_call>{"name": "get_weather" "arguments": {}}</tool_call>',
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Os\nlo"}}</tool_call>',
        '<tool_call>{"name": "get_weather", "arguments": {}}<tool_call>',
        '<tool_call>```json\n{"name": "get_weather", "arguments": {}}\n```</tool_call>',
        '<tool_call>{"name": "get_weather", "arguments": {"days": -Infinity}}</tool_call>',
    ],
    "qwen3_coder": [
        "<tool_call>",
        "<tool_call></tool_call>",
        "<tool_call>get_weather</tool_call>",
        "<tool_call><function></function></tool_call>",
        "<tool_call><function=></function></tool_call>",
        "<tool_call><function= ></function></tool_call>",
        "<tool_call><function=get_weather</function></tool_call>",
        "<tool_call><function=get_weather></tool_call>",
        "<tool_call></function></tool_call>",
        "<tool_call>so <function=get_weather></function></tool_call>",
        "<tool_call><function=get_weather></function> so</tool_call>",
        "<tool_call><function=get_weather>Oslo</function></tool_call>",
        CODER.replace("</parameter>", ""),
        CODER.replace("</function>", ""),
        CODER.replace("<parameter=city>", ""),
        CODER.replace("<parameter=city>", "<parameter>"),
        CODER.replace("<parameter=city>", "<parameter=city"),
        CODER.replace("</function>", "<parameter=days></function>"),
        CODER.replace("<function", "<Function"),
        CODER.replace("get_weather>", "get_weather\n>"),
        HERMES,
    ],
    "llama3_json": [
        "<|python_tag|>",
        "<|python_tag|>{",
        "<|python_tag|>{}",
        "<|python_tag|>[]",
        "<|python_tag|>null",
        "<|python_tag|>get_weather(city='Oslo')",
        "<|python_tag|>{'name': 'get_weather', 'parameters': {}}",
        '<|python_tag|>{"name": 1}',
        '<|python_tag|>{"name": ""}',
        '<|python_tag|>{"parameters": {}}',
        '<|python_tag|>{"name": "get_weather"} so',
        '<|python_tag|>{"name": "get_weather"}, {"name": "get_weather"}',
        '{"name":',
        '{"name": "get_weather"',
        '{"name": "get_weather", "parameters": }',
        '{"name": "get_weather", "parameters": {"city": "Oslo}}',
        '{"name": "get_weather", "parameters": 1}',
        '{"name": "get_weather", "parameters": "Oslo"}',
        '{"name": "get_weather", "parameters": [1]}',
        '{"name": "get_weather", "parameters": {"days": NaN}}',
        '{"type": "function", "name": 1}',
    ],
    "gpt_oss": [
        "<|channel|>commentary to=functions.get_weather",
        "<|channel|>commentary to=functions.get_weather <|constrain|>json",
        "<|channel|>commentary to=functions.get_weather<|call|>",
        "<|channel|>commentary to=functions.get_weather<|message|>",
        "<|channel|>commentary to=functions.get_weather<|message|><|call|>",
        "<|start|>assistant to=functions.get_weather<|start|>assistant",
        HARMONY.replace("get_weather", ""),
        HARMONY.replace("functions.get_weather", "functions."),
        HARMONY.replace("commentary", "analysis"),
        HARMONY.replace("<|message|>", ""),
        HARMONY.replace("{", ""),
        HARMONY.replace("}", ""),
        HARMONY.replace('"', "'"),
        HARMONY.replace('{"city": "Oslo"}', "[]"),
        HARMONY.replace('{"city": "Oslo"}', "1"),
        HARMONY.replace('{"city": "Oslo"}', '"Oslo"'),
        HARMONY.replace('{"city": "Oslo"}', "Oslo"),
        HARMONY.replace('{"city": "Oslo"}', '{"city": "Oslo"} so'),
        HARMONY.replace('{"city": "Oslo"}', '{"city": "Oslo"}{"city": "Oslo"}'),
        HARMONY.replace('"Oslo"', "NaN"),
        HARMONY.replace('"Oslo"', "9" * 5000),
    ],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in MALFORMED.items() for text in texts])
def test_a_malformed_call_is_reported_and_not_made(name: str, text: str):
    calls = FORMATS[name].parse(Reply(text), TOOLS).calls
    assert calls
    assert all(call.status not in ("ok", "unknown_tool") and call.flaw for call in calls)


def test_there_are_twenty_malformed_texts_of_each_format():
    assert all(len(set(MALFORMED[name])) >= 20 for name in FORMATS)


@pytest.mark.parametrize("name", FORMATS)
def test_any_text_is_read_without_harm(name: str):
    pieces = st.one_of(st.sampled_from(PIECES[name]), st.text(max_size=4))
    texts = st.one_of(st.text(), st.lists(pieces, max_size=14).map("".join))

    @settings(max_examples=500)
    @given(texts, st.booleans(), st.booleans())
    def check(text: str, stopped: bool, thinking: bool):
        assert problem(name, Reply(text, stopped, thinking)) == ""

    check()


@pytest.mark.parametrize("name", FORMATS)
def test_long_repetitions_are_read_without_harm(name: str):
    for piece in PIECES[name]:
        assert problem(name, Reply(piece * (20_000 // len(piece)))) == ""
