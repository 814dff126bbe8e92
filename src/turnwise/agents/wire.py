"""Chat completions in the JSON of OpenAI: what a program asks, and what it is answered.

Sampling is the recipe's affair, as are the lengths of replies: what a program says of them is not heeded. What would
change the meaning of a reply, and cannot be had, is refused.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from turnwise.agents.calls import Answer
from turnwise.surrogates import encodable
from turnwise.types import Message, MessageCall


class BadRequest(ValueError):
    """A request that cannot be answered; `param` is the key that is at fault."""

    def __init__(self, text: str, param: str | None = None, code: str | None = None, status: int = 400):
        super().__init__(text)
        self.param, self.code, self.status = param, code, status

    @property
    def body(self) -> dict[str, Any]:
        error = {"message": str(self), "type": "invalid_request_error", "param": self.param, "code": self.code}
        return {"error": error}


class _Text(BaseModel):
    type: Literal["text"]
    text: str


class _Function(BaseModel):
    name: str
    arguments: str


class _Call(BaseModel):
    id: str
    type: Literal["function"] = "function"
    function: _Function


class _Message(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Text] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class _ToolFunction(BaseModel):
    name: str
    parameters: dict[str, Any] = {}


class _Tool(BaseModel):
    type: Literal["function"]
    function: _ToolFunction


class _StreamOptions(BaseModel):
    include_usage: bool = False


class _Body(BaseModel):
    model: str
    messages: list[_Message] = Field(min_length=1)
    tools: list[_Tool] | None = None
    tool_choice: Any = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None


# What is refused, unless its value asks for nothing.
_REFUSED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "n": (lambda value: value == 1, "a call is one turn, so n must be 1"),
    "tool_choice": (
        lambda value: value in ("auto", "none"),
        "the policy chooses by itself; only auto and none are known",
    ),
    "parallel_tool_calls": (lambda value: value is True, "the policy may call several tools in a reply"),
    "response_format": (lambda value: value == {"type": "text"}, "replies are sampled freely, so only text is known"),
    "stop": (lambda value: not value, "a reply ends where the model ends it"),
    "logit_bias": (lambda value: not value, "the policy is sampled as it is"),
    "logprobs": (lambda value: not value, "log-probs stay with the trainer"),
    "functions": (lambda value: not value, "use tools"),
    "audio": (lambda value: not value, "replies are text"),
}


@dataclass(frozen=True)
class Request:
    model: str
    messages: list[Message]
    tools: list[dict[str, Any]]  # as they were sent
    stream: bool
    include_usage: bool  # at the end of a stream


def read_request(body: Any) -> Request:
    """Raises BadRequest."""
    if not isinstance(body, dict):
        raise BadRequest("the body of a request is a JSON object")
    for key, (harmless, why) in _REFUSED.items():
        if body.get(key) is not None and not harmless(body[key]):
            raise BadRequest(f"{key} is {body[key]!r:.80}: {why}", key, "unsupported_parameter")
    asked = _checked(body)
    tools = body.get("tools") or []
    shown = [] if asked.tool_choice == "none" else tools
    usage = asked.stream_options is not None and asked.stream_options.include_usage
    return Request(asked.model, _messages(asked.messages), shown, bool(asked.stream), usage)


def _checked(body: Any) -> _Body:
    try:
        return _Body.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        param = ".".join(map(str, first["loc"]))
        raise BadRequest(f"{param}: {first['msg']}", param) from error


def _messages(messages: Sequence[_Message]) -> list[Message]:
    return [_message(one, f"messages.{place}") for place, one in enumerate(messages)]


def _message(one: _Message, place: str) -> Message:
    parts = [one.content] if isinstance(one.content, str) else [part.text for part in one.content or ()]
    role = "system" if one.role == "developer" else one.role
    message: Message = {"role": role, "content": encodable("".join(parts))}
    if one.tool_calls:
        message["tool_calls"] = [
            _call(call, f"{place}.tool_calls.{number}") for number, call in enumerate(one.tool_calls)
        ]
    if one.tool_call_id:
        message["tool_call_id"] = one.tool_call_id
    if one.name and role == "tool":
        message["name"] = one.name
    return message


def _call(call: _Call, place: str) -> MessageCall:
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise BadRequest(f"{place}.function.arguments is not the text of a JSON object", place)
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}


def write_message(answer: Answer) -> dict[str, Any]:
    """A reply in the form of OpenAI, in which arguments are text."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.content or (None if answer.calls else "")}
    if answer.calls:
        message["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
            for call in answer.calls
        ]
    return message


def completion(answer: Answer, model: str) -> dict[str, Any]:
    """The answer to a call."""
    choice = {"index": 0, "message": write_message(answer), "finish_reason": answer.finish_reason, "logprobs": None}
    return _head("chat.completion", answer, model) | {"choices": [choice], "usage": _usage(answer)}


def chunks(answer: Answer, model: str, include_usage: bool) -> Iterator[str]:
    """The same as server-sent events: the whole reply, its end and, where it is wanted, the usage."""
    head = _head("chat.completion.chunk", answer, model)
    message = write_message(answer)
    for number, call in enumerate(message.get("tool_calls", ())):
        call["index"] = number
    for delta, reason in ((message, None), ({}, answer.finish_reason)):
        choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
        yield _event(head | {"choices": [choice]})
    if include_usage:
        yield _event(head | {"choices": [], "usage": _usage(answer)})
    yield "data: [DONE]\n\n"


def _event(body: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(body)}\n\n"


def _head(kind: str, answer: Answer, model: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{answer.turn}", "object": kind, "created": int(time.time()), "model": model}


def _usage(answer: Answer) -> dict[str, int]:
    shown, sampled = len(answer.prompt_ids), len(answer.generation.token_ids)
    return {"prompt_tokens": shown, "completion_tokens": sampled, "total_tokens": shown + sampled}
