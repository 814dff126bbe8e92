"""The format of Qwen3-Coder and Qwen3.5: <function=name> with a <parameter=key> for each argument, as plain text.

The text of a value has no type of its own; the tool's schema gives it one. A value that is not of its type stays text,
so that the tool's validation refuses it by name. `null` is None where the schema allows it, and a word where it
wants a string.
"""

import re
from collections.abc import Mapping
from functools import partial
from re import Match
from typing import Any

from turnwise.toolcalls.jsoncall import NotJSON, checked, decode_all
from turnwise.toolcalls.records import ParsedReply, Reply, Status, ToolCall, Tools
from turnwise.toolcalls.tagged import CLOSE, OPEN, Blocks, parse_tagged

EXAMPLE = "<tool_call>\n<function=tool>\n<parameter=key>\nvalue\n</parameter>\n</function>\n</tool_call>"

_FUNCTION, _END = "<function=", "</function>"
_NAME = re.compile(r"\s*<function=([^<>\n]*)>")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]*)>")
# A value may hold the closing tag; the one that ends it is followed by the next tag.
_VALUE_END = re.compile(r"</parameter>(?=\s*(?:<parameter=|</function>))")
_LAST_VALUE_END = re.compile(r"</parameter>\s*\Z")
_FUNCTION_END = re.compile(r"\s*</function>\s*\Z")


def parse(reply: Reply, tools: Tools | None = None) -> ParsedReply:
    # Some models leave <tool_call> out.
    return parse_tagged(reply, partial(_read, Blocks(reply), tools, reply.stopped), OPEN, _FUNCTION)


def _read(blocks: Blocks, tools: Tools | None, stopped: bool, mark: Match[str]) -> ToolCall:
    """A block ends at its closing tag; without one it is tolerated where the model stopped there by itself."""
    bare = mark[0] == _FUNCTION
    body = mark.start() if bare else mark.end()
    close, opening = blocks.next_close(body), blocks.next_open(body)
    if close is not None and close < opening:
        flaw = f"{OPEN} is missing" if bare else ""
        return _call(blocks.text[body:close], (mark.start(), close + len(CLOSE)), tools, flaw)
    flaw = f"{CLOSE} is missing"
    ended = blocks.text.find(_END, body, opening)
    stop = ended + len(_END) if bare and ended >= 0 else opening
    if stop == opening and not (stopped and stop == blocks.end):
        return ToolCall("", {}, "unclosed_block", (mark.start(), stop), flaw)
    return _call(blocks.text[body:stop], (mark.start(), stop), tools, flaw)


def _call(text: str, span: tuple[int, int], tools: Tools | None, flaw: str) -> ToolCall:
    function = _NAME.match(text)
    if not function:
        status: Status = "unclosed_block" if flaw else "malformed_structure"
        return ToolCall("", {}, status, span, "a call begins with <function=name>")
    name = function[1].strip()
    if not name:
        return ToolCall("", {}, "missing_name", span, "<function=> names no tool")
    properties = _mapping(_mapping((tools or {}).get(name)).get("properties"))
    arguments: dict[str, Any] = {}
    place = function.end()
    while parameter := _PARAMETER.match(text, place):
        key = parameter[1].strip()
        ended = _VALUE_END.search(text, parameter.end()) or _LAST_VALUE_END.search(text, parameter.end())
        value = text[parameter.end() : ended.start() if ended else len(text)]
        if (ended is None and not flaw) or "<parameter=" in value:
            return ToolCall(name, {}, "malformed_structure", span, f"</parameter> of {key!r:.80} is missing")
        arguments[key] = typed(_unwrapped(value), properties.get(key))
        place = ended.end() if ended else len(text)
    if not _FUNCTION_END.match(text, place) and (text[place:].strip() or not flaw):
        return ToolCall(name, {}, "malformed_structure", span, "a call is <parameter=key> blocks and </function>")
    call = checked(name, arguments, span, tools)
    return ToolCall(name, call.arguments, call.status, span, call.flaw or flaw)


def _unwrapped(value: str) -> str:
    """The text between the line breaks that the template puts around it."""
    return value.removeprefix("\n").removesuffix("\n")


_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


def typed(text: str, schema: Any) -> Any:
    """The value of a text, by the type that a JSON Schema asks for."""
    allowed = _allowed(_mapping(schema))
    if allowed == {"string"}:
        return text
    try:
        value = decode_all(text.strip())
    except NotJSON:
        return text
    if value is None:
        return None if not allowed or "null" in allowed else text
    kind = _TYPES[type(value)]
    fits = not allowed or kind in allowed or (kind == "integer" and "number" in allowed)
    return value if fits else text


def _allowed(schema: Mapping[str, Any]) -> set[str]:
    """The types that a schema names; none: any."""
    named = schema.get("type")
    found = {named} if isinstance(named, str) else {one for one in _list(named) if isinstance(one, str)}
    parts = [part for key in ("anyOf", "oneOf") for part in _list(schema.get(key)) if isinstance(part, Mapping)]
    found = found.union(*map(_allowed, parts))
    if not found and isinstance(schema.get("enum"), list):
        found = {_TYPES.get(type(member), "null") for member in schema["enum"]}
    return found | {"null"} if found and schema.get("nullable") is True else found


def _mapping(value: Any) -> Mapping[str, Any]:
    """Nothing where a schema that nobody checked has something else."""
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
