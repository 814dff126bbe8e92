"""A sample of a row, in verl's spelling or with flat columns.

| field | columns, the first that there is |
|---|---|
| prompt | `prompt`, or what the recipe says: messages, or a text, which is one user message |
| agent | `agent_name` |
| data_source | `data_source` |
| ground_truth | `ground_truth`, `reward_model.ground_truth` |
| tools | `tool_selection`, `extra_info.tool_selection` |
| tools_kwargs | `tools_kwargs`, `extra_info.tools_kwargs` |
| interaction_kwargs | `interaction_kwargs`, `extra_info.interaction_kwargs` |
| extra | all other columns, and the rest of `extra_info` |

Where both spellings stand in one row they must say the same.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_type_hints

from turnwise.data.read import Place, Row, from_json
from turnwise.types import ROLES, Message, MessageCall, Sample

_FROM_DISK = set(get_type_hints(Message)) - {"token_ids"}  # ids belong to the model that sampled them


def to_sample(place: Place, row: Any, index: int, prompt_key: str = "prompt") -> Sample:
    """Raises ValueError of one sentence that names the place, the column and the remedy."""
    if not isinstance(row, dict):
        raise ValueError(f"{place} is {row!r:.80}; a row is an object with columns")
    try:
        return replace(_sample(dict(row), index, prompt_key), place=place)
    except ValueError as error:
        raise ValueError(f"{place}, {error}") from error


def _sample(row: Row, index: int, prompt_key: str) -> Sample:
    for column, value in row.items():
        _check_json(column, value)
    if prompt_key not in row:
        raise ValueError(f"column {prompt_key} is missing; there are {', '.join(row)}; set data.prompt_key")
    messages = _messages(prompt_key, row.pop(prompt_key))
    scoring = _mapping("reward_model", row.pop("reward_model", None))
    extra = _mapping("extra_info", row.pop("extra_info", None))
    tools = _either(row, "tool_selection", extra, "extra_info")
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, str) for tool in tools)):
        raise ValueError(f"column tool_selection is {tools!r:.80}; write a list of names of tools")
    tools_kwargs = _mapping("tools_kwargs", _either(row, "tools_kwargs", extra, "extra_info"))
    for tool, groups in tools_kwargs.items():
        _mapping(f"tools_kwargs.{tool}", groups)
    interaction = _mapping("interaction_kwargs", _either(row, "interaction_kwargs", extra, "extra_info"))
    truth = _either(row, "ground_truth", scoring, "reward_model")
    agent, source = _text(row, "agent_name"), _text(row, "data_source")
    for key in row.keys() & extra.keys():
        if row[key] != extra[key]:
            raise ValueError(f"column {key} and extra_info.{key} differ; leave one out")
    return Sample(
        index,
        messages,
        agent,
        source,
        truth,
        None if tools is None else tuple(tools),
        tools_kwargs,
        interaction,
        {**row, **extra},
    )


def _check_json(column: str, value: Any) -> None:
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"column {column} holds what JSON cannot say ({error}); leave the column out") from error


def _messages(column: str, value: Any) -> tuple[Message, ...]:
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise ValueError(f"column {column} is {value!r:.80}; write a text or a list of messages")
    for number, message in enumerate(value, 1):
        if not isinstance(message, Mapping) or message.get("role") not in ROLES:
            raise ValueError(
                f"column {column}: message {number} is {message!r:.80}; it needs a role, one of {', '.join(ROLES)}"
            )
        if strange := message.keys() - _FROM_DISK:
            raise ValueError(f"column {column}: message {number} has {', '.join(strange)}, which no message has here")
    messages = tuple(_message(f"column {column}: message {number}", message) for number, message in enumerate(value, 1))
    if value[-1]["role"] in ("system", "assistant"):
        raise ValueError(f"column {column} ends with a message of the {value[-1]['role']}; end with the user's")
    return messages


def _message(place: str, message: Mapping[str, Any]) -> Message:
    found: Any = {key: value for key, value in message.items() if value is not None}  # Parquet gives all keys to all
    if "tool_calls" in found:
        found = {"content": "", **found, "tool_calls": _calls(place, found["tool_calls"])}
    if not isinstance(found.get("content"), str):
        raise ValueError(f"{place} needs a text as its content")
    return found


def _calls(place: str, value: Any) -> list[MessageCall]:
    """Their arguments may be JSON in a text, as OpenAI has them."""
    try:
        calls = []
        for number, call in enumerate(value):
            name, arguments = call["function"]["name"], call["function"].get("arguments")
            if isinstance(arguments, str):
                arguments = from_json(arguments)
            function: Any = {"name": name, "arguments": dict(arguments or {})}
            if not isinstance(name, str):
                raise TypeError
            calls.append({"id": call.get("id") or f"call_{number}", "type": "function", "function": function})
        return calls
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
        told = 'write [{"function": {"name": NAME, "arguments": {...}}}], and no key twice'
        raise ValueError(f"{place} has the tool_calls {value!r:.80}; {told}") from error


def _mapping(column: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"column {column} is {value!r:.80}; write keys and values")
    return dict(value)


def _either(row: Row, column: str, inner: dict[str, Any], group: str) -> Any:
    """A value from its own column or from a group of keys, taken out of both."""
    flat, nested = row.pop(column, None), inner.pop(column, None)
    if flat is not None and nested is not None and flat != nested:
        raise ValueError(f"column {column} and {group}.{column} differ; leave one out")
    return nested if flat is None else flat


def _text(row: Row, column: str) -> str:
    value = row.pop(column, None)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"column {column} is {value!r:.80}; write a text")
    return value or ""
