"""The format of Hermes, Qwen2.5 and Qwen3: a JSON object between <tool_call> tags."""

import re
from functools import partial
from re import Match

from turnwise.toolcalls.jsoncall import NotJSON, call_of, decode_at
from turnwise.toolcalls.records import ParsedReply, Reply, ToolCall, Tools
from turnwise.toolcalls.tagged import CLOSE, OPEN, Blocks, parse_tagged

_TAGS_IN_A_VALUE = 8
_BLANKS = re.compile(r"\s*")
EXAMPLE = '<tool_call>\n{"name": "tool", "arguments": {"key": "value"}}\n</tool_call>'


def parse(reply: Reply, tools: Tools | None = None) -> ParsedReply:
    return parse_tagged(reply, partial(_read, Blocks(reply), tools), OPEN)


def _read(blocks: Blocks, tools: Tools | None, mark: Match[str]) -> ToolCall:
    # A string of the arguments may hold tags, so the value is read first, and the closing tag is looked for behind it.
    # No further than a few opening tags, though: each may begin a broken value, and their cost must not multiply.
    body = blocks.text[mark.end() : blocks.next_open(mark.end(), skip=_TAGS_IN_A_VALUE)]
    try:
        value, after = decode_at(body, 0)
    except NotJSON as error:
        return _broken(blocks, mark, str(error))
    close = mark.end() + _BLANKS.match(body, after).end()  # type: ignore[union-attr]
    if blocks.next_close(close) == close:
        return call_of(value, (mark.start(), close + len(CLOSE)), tools)
    return _broken(blocks, mark, "extra text after the JSON object")


def _broken(blocks: Blocks, mark: Match[str], flaw: str) -> ToolCall:
    """A call that cannot be read ends with its closing tag, or before the next call where it has none."""
    close, opening = blocks.next_close(mark.end()), blocks.next_open(mark.end())
    if close is None or opening < close:
        return ToolCall("", {}, "unclosed_block", (mark.start(), opening), f"{CLOSE} is missing")
    return ToolCall("", {}, "invalid_json", (mark.start(), close + len(CLOSE)), flaw)
