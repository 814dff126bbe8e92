"""Random texts for the readers of tool calls, and how long the worst 100 kB take.

python -m benchmarks.fuzz_toolcalls [texts a format, 100000]
"""

import itertools
import random
import sys
import time
from typing import get_args

from turnwise.toolcalls import FORMATS, Reply
from turnwise.toolcalls.records import Status

TOOLS = {
    "get_weather": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    "f": {"type": "object", "properties": {}},
}
_JSON = [
    "{",
    "}",
    "[",
    "]",
    '"',
    ":",
    ",",
    "\\",
    "1",
    "1e9",
    "null",
    '"name": ',
    '"f"',
    '"arguments": ',
    '"parameters": ',
]
_JSON += ['{"name": "f", "arguments": {}}', '{"name": "get_weather", "parameters": {"city": "Oslo"}}', "9" * 50, "NaN"]
_PLAIN = [" ", "\n", "x", "é", "\ud83d", "😀", "\0", "<", ">", "|", "<|im_end|>", "<|eot_id|>", "<think>", "</think>"]
_TAGS = ["<tool_call>", "</tool_call>"]
_CODER = ["<function=", "<function=f>", "<function=get_weather>", "</function>", "<parameter=days>", "</parameter>"]
_HARMONY = ["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"]
PIECES = {
    "hermes": [*_PLAIN, *_TAGS, *_JSON, "<tool_call>{", '<tool_call>{"name": "f", "arguments": {}}</tool_call>'],
    "qwen3_coder": [*_PLAIN, *_TAGS, *_CODER, "<tool_call><function=f>", "<parameter=a>1</parameter>", "<parameter="],
    "llama3_json": [*_PLAIN, *_JSON, ";", "; ", "<|python_tag|>", '{"name": "f"};', '{"name":'],
    "gpt_oss": [*_PLAIN, *_HARMONY, *_JSON, "assistant", "analysis", "commentary", "final", " to=functions.f", " to="],
}


def problem(name: str, reply: Reply) -> str:
    """What is wrong with how a reply was read; empty where nothing is."""
    found = FORMATS[name].parse(reply, TOOLS)
    place = 0
    for call in found.calls:
        start, end = call.span
        if not place <= start < end <= len(reply.text):
            return f"the span {call.span} is not behind {place} and inside the reply"
        place = end
        if call.status not in get_args(Status):
            return f"{call.status} is no status"
        if call.status == "ok" and (call.name not in TOOLS or not isinstance(call.arguments, dict)):
            return f"a call of {call.name!r} with {call.arguments!r} is not ok"
        if call.status != "ok" and not call.flaw:
            return f"a call that is {call.status} does not say why"
    if name != "gpt_oss" and reply.thinking and "</think>" not in reply.text and found.calls:
        return "a call was made of a reply that never stopped thinking"
    return ""


def fuzz(name: str, count: int) -> float:
    """Read so many random texts; the seconds of processor time."""
    rng = random.Random(f"fuzz {name}")
    began = time.process_time()
    for _ in range(count):
        text = "".join(rng.choices(PIECES[name], k=rng.randint(0, 24)))
        reply = Reply(text, rng.random() < 0.7, rng.random() < 0.2)
        if wrong := problem(name, reply):
            raise AssertionError(f"{name}: {wrong}: {text!r}")
    return time.process_time() - began


def seconds(name: str, period: str, size: int) -> float:
    """Processor time of reading a text that repeats itself."""
    reply = Reply(period * (size // len(period)))
    began = time.process_time()
    FORMATS[name].parse(reply, TOOLS)
    return time.process_time() - began


def main(count: int = 100_000) -> None:
    for name in FORMATS:
        spent = fuzz(name, count)
        print(f"{name:12} {count} texts, none raised, {1e6 * spent / count:.0f} us a text", flush=True)
    for name in FORMATS:
        periods = map("".join, itertools.product(PIECES[name], ["", *PIECES[name]]))
        worst = max(periods, key=lambda period: seconds(name, period, 10_000))
        figures = ", ".join(
            f"{size // 1000} kB {seconds(name, worst, size):.3f} s" for size in (50_000, 100_000, 200_000)
        )
        print(f"{name:12} worst repeated pair {worst!r}: {figures}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
