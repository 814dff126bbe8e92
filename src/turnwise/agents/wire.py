"""What the two APIs of OpenAI that we speak have in common: a request, and how one is refused.

Sampling is the recipe's affair, as are the lengths of replies: what a program says of them is not heeded. What would
change the meaning of a reply, and cannot be had, is refused.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from turnwise.agents.calls import Answer
from turnwise.types import Message, MessageCall

Body = TypeVar("Body", bound=BaseModel)

# By key: the test of a value that asks for nothing, and why any other is refused.
Refused = Mapping[str, tuple[Callable[[Any], bool], str]]


class BadRequest(ValueError):
    """A request that cannot be answered; `param` is the key that is at fault."""

    def __init__(self, text: str, param: str | None = None, code: str | None = None, status: int = 400):
        super().__init__(text)
        self.param, self.code, self.status = param, code, status

    @property
    def body(self) -> dict[str, Any]:
        error = {"message": str(self), "type": "invalid_request_error", "param": self.param, "code": self.code}
        return {"error": error}


@dataclass(frozen=True)
class Request(ABC):
    model: str
    messages: list[Message]
    tools: list[dict[str, Any]]  # in the form of chat completions
    stream: bool

    @abstractmethod
    def whole(self, answer: Answer) -> dict[str, Any]:
        """The answer as one JSON object."""

    @abstractmethod
    def events(self, answer: Answer) -> Iterator[str]:
        """The same as server-sent events, the text in one piece."""


REFUSED: Refused = {
    "tool_choice": (
        lambda value: value in ("auto", "none"),
        "the policy chooses by itself; only auto and none are known",
    ),
    "parallel_tool_calls": (lambda value: value is True, "the policy may call several tools in a reply"),
}


def read_body(body: Any, form: type[Body], refused: Refused) -> Body:
    """Raises BadRequest."""
    if not isinstance(body, dict):
        raise BadRequest("the body of a request is a JSON object")
    for key, (harmless, why) in refused.items():
        if body.get(key) is not None and not harmless(body[key]):
            raise BadRequest(f"{key} is {body[key]!r:.80}: {why}", key, "unsupported_parameter")
    try:
        return form.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        param = ".".join(map(str, first["loc"]))
        raise BadRequest(f"{param}: {first['msg']}", param) from error


def read_call(id: str, name: str, arguments: str, place: str) -> MessageCall:
    """A call as programs send it back, its arguments as text. Raises BadRequest."""
    try:
        read = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict):
        raise BadRequest(f"{place}.arguments is not the text of a JSON object", place)
    return {"id": id, "type": "function", "function": {"name": name, "arguments": read}}
