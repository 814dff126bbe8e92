"""The Responses API of OpenAI: a conversation as a list of items, of which a reply may add several.

Nothing is kept between requests: each brings the whole conversation, as frameworks do that ask for `store: false`.
"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Discriminator, Field, Tag

from turnwise.agents.calls import Answer
from turnwise.agents.wire import REFUSED, Refused, Request, read_body, read_call
from turnwise.surrogates import encodable
from turnwise.types import Message


class _Text(BaseModel):
    type: Literal["input_text", "output_text"]
    text: str


class _Message(BaseModel):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[_Text]


class _Call(BaseModel):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class _Output(BaseModel):
    type: Literal["function_call_output"]
    call_id: str
    output: str | list[_Text]


class _Tool(BaseModel):
    type: Literal["function"]
    name: str
    parameters: dict[str, Any] | None = None


def _kind(item: Any) -> str | None:
    return item.get("type", "message") if isinstance(item, dict) else None


_Item = Annotated[
    Annotated[_Message, Tag("message")]
    | Annotated[_Call, Tag("function_call")]
    | Annotated[_Output, Tag("function_call_output")],
    Discriminator(
        _kind,
        custom_error_type="unknown_item",
        custom_error_message="an item is a message, a function_call or a function_call_output",
    ),
]


class _Body(BaseModel):
    model: str
    input: str | Annotated[list[_Item], Field(min_length=1)]
    instructions: str | None = None
    tools: list[_Tool] | None = None
    tool_choice: Any = None
    stream: bool | None = None


_REFUSED: Refused = {
    **REFUSED,
    "previous_response_id": (lambda _: False, "no responses are kept; send the whole conversation as input"),
    "conversation": (lambda _: False, "no conversations are kept; send the whole of it as input"),
    "background": (lambda value: not value, "a response is waited for"),
    "prompt": (lambda _: False, "there are no stored prompts; send it as input"),
    "text": (
        lambda value: isinstance(value, dict) and value.get("format") in (None, {"type": "text"}),
        "replies are sampled freely, so only text is known",
    ),
    "truncation": (lambda value: value == "disabled", "the limits of prompts are the recipe's"),
    "top_logprobs": (lambda value: not value, "log-probs stay with the trainer"),
    "include": (lambda value: "logprobs" not in str(value), "log-probs stay with the trainer"),
}


@dataclass(frozen=True)
class ResponseRequest(Request):
    echo: dict[str, Any]  # what a response repeats of its request

    def whole(self, answer: Answer) -> dict[str, Any]:
        cut = answer.finish_reason == "length"
        return self._response(answer, "incomplete" if cut else "completed") | {
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": _items(answer),
            "usage": _usage(answer),
        }

    def events(self, answer: Answer) -> Iterator[str]:
        for number, event in enumerate(self._events(answer)):
            yield f"event: {event['type']}\ndata: {json.dumps({**event, 'sequence_number': number})}\n\n"

    def _events(self, answer: Answer) -> Iterator[dict[str, Any]]:
        begun = self._response(answer, "in_progress")
        yield {"type": "response.created", "response": begun}
        yield {"type": "response.in_progress", "response": begun}
        for index, item in enumerate(_items(answer)):
            of_item = {"output_index": index, "item_id": item["id"]}
            bare = {"content": []} if item["type"] == "message" else {"arguments": ""}
            added = {**item, **bare, "status": "in_progress"}
            yield {"type": "response.output_item.added", "output_index": index, "item": added}
            yield from ({**event, **of_item} for event in (_said if item["type"] == "message" else _called)(item))
            yield {"type": "response.output_item.done", "output_index": index, "item": item}
        whole = self.whole(answer)
        yield {"type": f"response.{whole['status']}", "response": whole}

    def _response(self, answer: Answer, status: str) -> dict[str, Any]:
        return {
            "id": f"resp_{answer.turn}",
            "object": "response",
            "created_at": int(time.time()),
            "model": self.model,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "output": [],
            "usage": None,
            "temperature": None,
            "top_p": None,
            "parallel_tool_calls": True,
            "metadata": {},
            **self.echo,
        }


def read_response(body: Any) -> ResponseRequest:
    """Raises BadRequest."""
    asked = read_body(body, _Body, _REFUSED)
    sent = body.get("tools") or []
    tools = [] if asked.tool_choice == "none" else [_tool(one) for one in sent]
    echo = {"instructions": asked.instructions, "tools": sent, "tool_choice": asked.tool_choice or "auto"}
    return ResponseRequest(asked.model, _messages(asked), tools, bool(asked.stream), echo)


def _tool(sent: dict[str, Any]) -> dict[str, Any]:
    function = {key: value for key, value in sent.items() if key != "type" and value is not None}
    return {"type": "function", "function": function}


def _messages(asked: _Body) -> list[Message]:
    """The items of one reply, its text and its calls, are one message."""
    messages: list[Message] = []
    if asked.instructions:
        messages.append({"role": "system", "content": encodable(asked.instructions)})
    items = [_Message(role="user", content=asked.input)] if isinstance(asked.input, str) else asked.input
    for number, item in enumerate(items):
        if isinstance(item, _Message):
            role = "system" if item.role == "developer" else item.role
            messages.append({"role": role, "content": _joined(item.content)})
        elif isinstance(item, _Output):
            messages.append({"role": "tool", "content": _joined(item.output), "tool_call_id": item.call_id})
        else:
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            call = read_call(item.call_id, item.name, item.arguments, f"input.{number}")
            messages[-1]["tool_calls"] = [*messages[-1].get("tool_calls", ()), call]
    return messages


def _joined(content: str | Sequence[_Text]) -> str:
    return encodable(content if isinstance(content, str) else "".join(part.text for part in content))


def _items(answer: Answer) -> list[dict[str, Any]]:
    status = "incomplete" if answer.finish_reason == "length" else "completed"
    text = {"type": "output_text", "text": answer.content, "annotations": [], "logprobs": []}
    message = {
        "type": "message",
        "id": f"msg_{answer.turn}",
        "role": "assistant",
        "status": status,
        "content": [text],
    }
    calls = [
        {
            "type": "function_call",
            "id": f"fc_{call['id']}",
            "call_id": call["id"],
            "name": call["function"]["name"],
            "arguments": json.dumps(call["function"]["arguments"]),
            "status": "completed",
        }
        for call in answer.calls
    ]
    return [message, *calls] if answer.content or not calls else calls


def _said(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    (text,) = message["content"]
    place = {"content_index": 0}
    yield {"type": "response.content_part.added", **place, "part": {**text, "text": ""}}
    yield {"type": "response.output_text.delta", **place, "delta": text["text"], "logprobs": []}
    yield {"type": "response.output_text.done", **place, "text": text["text"], "logprobs": []}
    yield {"type": "response.content_part.done", **place, "part": text}


def _called(call: dict[str, Any]) -> Iterator[dict[str, Any]]:
    kind = "response.function_call_arguments"
    yield {"type": f"{kind}.delta", "delta": call["arguments"]}
    yield {"type": f"{kind}.done", "name": call["name"], "arguments": call["arguments"]}


def _usage(answer: Answer) -> dict[str, Any]:
    shown, sampled = len(answer.prompt_ids), len(answer.generation.token_ids)
    return {
        "input_tokens": shown,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": sampled,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": shown + sampled,
    }
