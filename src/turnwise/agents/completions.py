"""Chat completions in the JSON of OpenAI: what a program asks, and what it is answered."""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field

from turnwise.agents.calls import Answer
from turnwise.agents.wire import REFUSED, Refused, Request, read_body, read_call
from turnwise.surrogates import encodable
from turnwise.types import Message


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


_REFUSED: Refused = {
    **REFUSED,
    "n": (lambda value: value == 1, "a call is one turn, so n must be 1"),
    "response_format": (lambda value: value == {"type": "text"}, "replies are sampled freely, so only text is known"),
    "stop": (lambda value: not value, "a reply ends where the model ends it"),
    "logit_bias": (lambda value: not value, "the policy is sampled as it is"),
    "logprobs": (lambda value: not value, "log-probs stay with the trainer"),
    "functions": (lambda value: not value, "use tools"),
    "audio": (lambda value: not value, "replies are text"),
}


@dataclass(frozen=True)
class ChatRequest(Request):
    include_usage: bool  # at the end of a stream

    def whole(self, answer: Answer) -> dict[str, Any]:
        message = _written(answer)
        choice = {"index": 0, "message": message, "finish_reason": answer.finish_reason, "logprobs": None}
        return self._head("chat.completion", answer) | {"choices": [choice], "usage": _usage(answer)}

    def events(self, answer: Answer) -> Iterator[str]:
        """The whole reply, its end and, where it is wanted, the usage."""
        head = self._head("chat.completion.chunk", answer)
        message = _written(answer)
        for number, call in enumerate(message.get("tool_calls", ())):
            call["index"] = number
        for delta, reason in ((message, None), ({}, answer.finish_reason)):
            choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
            yield _event(head | {"choices": [choice]})
        if self.include_usage:
            yield _event(head | {"choices": [], "usage": _usage(answer)})
        yield "data: [DONE]\n\n"

    def _head(self, kind: str, answer: Answer) -> dict[str, Any]:
        return {"id": f"chatcmpl-{answer.turn}", "object": kind, "created": int(time.time()), "model": self.model}


def read_completion(body: Any) -> ChatRequest:
    """Raises BadRequest."""
    asked = read_body(body, _Body, _REFUSED)
    tools = [] if asked.tool_choice == "none" else body.get("tools") or []  # as they were sent
    messages = [_message(one, f"messages.{place}") for place, one in enumerate(asked.messages)]
    usage = asked.stream_options is not None and asked.stream_options.include_usage
    return ChatRequest(asked.model, messages, tools, bool(asked.stream), usage)


def _message(one: _Message, place: str) -> Message:
    parts = [one.content] if isinstance(one.content, str) else [part.text for part in one.content or ()]
    role = "system" if one.role == "developer" else one.role
    message: Message = {"role": role, "content": encodable("".join(parts))}
    if one.tool_calls:
        message["tool_calls"] = [
            read_call(call.id, call.function.name, call.function.arguments, f"{place}.tool_calls.{number}.function")
            for number, call in enumerate(one.tool_calls)
        ]
    if one.tool_call_id:
        message["tool_call_id"] = one.tool_call_id
    if one.name and role == "tool":
        message["name"] = one.name
    return message


def _written(answer: Answer) -> dict[str, Any]:
    """A reply in the form of OpenAI, in which arguments are text."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.content or (None if answer.calls else "")}
    if answer.calls:
        message["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
            for call in answer.calls
        ]
    return message


def _usage(answer: Answer) -> dict[str, int]:
    shown, sampled = len(answer.prompt_ids), len(answer.generation.token_ids)
    return {"prompt_tokens": shown, "completion_tokens": sampled, "total_tokens": shown + sampled}


def _event(body: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(body)}\n\n"
