"""A call written as a JSON object, which three of the formats share. JSON here means JSON: no NaN, no infinities, and
no key twice, of which only one would be heeded."""

import json
from collections import Counter
from typing import Any, NoReturn

from turnwise.surrogates import encodable
from turnwise.toolcalls.records import Status, ToolCall, Tools


class NotJSON(ValueError):
    """The text is not JSON; says what, where and near which characters."""


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _finite(number: str) -> float:
    value = float(number)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"the number {number:.20} is too large")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        (twice, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise NotJSON(f"an object has the key {twice!r:.80} twice")
    return found


_DEEPEST = 100  # lists and objects within one another; Python itself cannot copy many more
_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_refuse, parse_float=_finite)


def decode_at(text: str, start: int) -> tuple[Any, int]:
    """The JSON value that begins at a character, after blanks, and where it ends. Raises NotJSON."""
    while start < len(text) and text[start] in " \t\r\n":
        start += 1
    try:
        value, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        excerpt = text[max(start, error.pos - 20) : error.pos + 20]
        raise NotJSON(f"{error.msg} at character {error.pos - start} of the JSON, near {excerpt!r}") from None
    except RecursionError:
        raise NotJSON("it is nested too deeply") from None
    except NotJSON:
        raise
    except ValueError as error:  # a number of thousands of digits, or none of JSON's
        raise NotJSON(str(error).partition(":")[0]) from None
    if _depth(value) > _DEEPEST:
        raise NotJSON("it is nested too deeply")
    return value, end


def _depth(value: Any) -> int:
    """How many lists and objects stand within one another."""
    depth, level = -1, [value]
    while level:
        depth += 1
        inside = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list))
        level = [part for parts in inside for part in parts]
    return depth


def decode_all(text: str) -> Any:
    """The same of a text that is one JSON value. Raises NotJSON."""
    value, end = decode_at(text, 0)
    if text[end:].strip():
        raise NotJSON(f"extra text after the JSON, near {text[end : end + 40].strip()!r}")
    return value


def call_of(value: Any, span: tuple[int, int], tools: Tools | None, keys: tuple[str, ...] = ("arguments",)) -> ToolCall:
    """What a decoded object calls; its arguments stand under the first of the `keys` that it has."""
    if not isinstance(value, dict):
        return ToolCall("", {}, "malformed_structure", span, "a call is a JSON object with a name and its arguments")
    name = value.get("name")
    if not isinstance(name, str) or not name.strip():
        return ToolCall("", {}, "missing_name", span, "the object has no name")
    given = next((key for key in keys if key in value), "")
    strange = value.keys() - {"name", "type", "id"}
    if not given and strange:
        flaw = f"its arguments stand under {', '.join(sorted(strange))!r:.80}, and not under {keys[0]!r}"
        return ToolCall(name.strip(), {}, "malformed_structure", span, flaw)
    return checked(encodable(name.strip()), value[given] if given else {}, span, tools)


def checked(name: str, arguments: Any, span: tuple[int, int], tools: Tools | None) -> ToolCall:
    """A call by name whose arguments must be an object; JSON inside a string is decoded once more."""
    if isinstance(arguments, str):
        try:
            arguments = decode_all(arguments)
        except NotJSON as error:
            return ToolCall(name, {}, "invalid_json", span, f"the arguments are a string, and not of JSON: {error}")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return ToolCall(name, {}, "invalid_arguments", span, "the arguments must be one JSON object")
    status: Status = "ok" if tools is None or name in tools else "unknown_tool"
    return ToolCall(name, arguments, status, span, "" if status == "ok" else f"there is no tool {name!r:.80}")
