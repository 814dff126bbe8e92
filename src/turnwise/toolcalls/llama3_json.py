"""The format of Llama 3.1 and later: the whole message is JSON with a name; several calls are separated by `;`."""

import re

from turnwise.toolcalls.jsoncall import NotJSON, call_of, decode_at
from turnwise.toolcalls.records import ParsedReply, Reply, ToolCall, Tools, end_of_text
from turnwise.toolcalls.tagged import UNTHINK, split_tagged

EXAMPLE = '{"name": "tool", "parameters": {"key": "value"}}'

TAG = "<|python_tag|>"
_BLANKS = re.compile(r"\s*")
# Without the tag, JSON counts as a call if a name stands where the format has it; other JSON is an answer.
_MEANT = re.compile(r'\s*\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:')


def parse(reply: Reply, tools: Tools | None = None) -> ParsedReply:
    outside = split_tagged(reply)
    if not outside.reasoning_complete:
        return outside
    text, end = reply.text, end_of_text(reply.text)
    start = _BLANKS.match(text, _after_reasoning(reply)).end()  # type: ignore[union-attr]
    tagged = any(mark.start() == start for mark in reply.marks(TAG))
    if not tagged and not _MEANT.match(text, start):
        return outside
    calls = _calls(text[:end], start, start + len(TAG) if tagged else start, tools, reply.stopped)
    if not tagged and calls[0].flaw == _TRAILING:
        return outside
    return ParsedReply("", outside.reasoning, True, tuple(calls))


def _after_reasoning(reply: Reply) -> int:
    return next((mark.end() for mark in reply.marks(UNTHINK)), 0)


_TRAILING = "text after the call; a message with calls holds nothing else"


def _calls(text: str, begin: int, start: int, tools: Tools | None, stopped: bool) -> list[ToolCall]:
    """At least one call; the first that is broken is the last. The markup begins at `begin`, the JSON at `start`."""
    calls: list[ToolCall] = []
    while True:
        try:
            value, after = decode_at(text, start)
        except NotJSON as error:
            whole = (begin, len(text))
            if stopped:
                return [*calls, ToolCall("", {}, "invalid_json", whole, str(error))]
            return [*calls, ToolCall("", {}, "unclosed_block", whole, "the reply was cut inside the JSON")]
        call = call_of(value, (begin, after), tools, ("parameters", "arguments"))
        after = _BLANKS.match(text, after).end()  # type: ignore[union-attr]
        if after < len(text) and text[after] != ";":
            return [*calls, ToolCall(call.name, {}, "malformed_structure", (begin, len(text)), _TRAILING)]
        calls.append(call)
        begin = start = _BLANKS.match(text, min(after + 1, len(text))).end()  # type: ignore[union-attr]
        if start == len(text):
            return calls
