"""What passes between a model, its tools and the loop that plays them. Nothing here imports torch."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import jsonschema
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as validated

from turnwise.components import nearest
from turnwise.failures import EpisodeFailure
from turnwise.toolcalls import ToolCall

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True)
class ToolSchema:
    """How a tool is shown to the model: the nested form of OpenAI, which chat templates read."""

    name: str
    description: str
    parameters: Mapping[str, Any]  # JSON Schema of an object

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ValueError(
                f"the tool name {self.name!r} cannot be used; take at most 64 letters, digits, dots and dashes"
            )
        if not isinstance(self.description, str):
            raise ValueError(f"tool {self.name}: its description is {self.description!r}; write a text")
        if not isinstance(self.parameters, Mapping) or self.parameters.get("type") != "object":
            raise ValueError(f"tool {self.name}: its parameters must be a JSON Schema with `type: object`")
        try:
            jsonschema.Draft202012Validator.check_schema(self.parameters)
        except jsonschema.SchemaError as error:
            raise ValueError(f"tool {self.name}: its parameters are no JSON Schema: {error.message:.200}") from error

    @classmethod
    def of(cls, tree: Any) -> "ToolSchema":
        """A schema from either spelling, flat {name, description, parameters} or nested {type, function: {...}}."""
        if isinstance(tree, ToolSchema):
            return tree
        nested = isinstance(tree, Mapping) and "function" in tree
        if nested and (set(tree) - {"type", "function"} or tree.get("type", "function") != "function"):
            raise ValueError(f"a nested tool_schema is {{type: function, function: ...}}, not {dict(tree)!r:.200}")
        flat = tree["function"] if nested else tree
        if not isinstance(flat, Mapping):
            raise ValueError(f"tool_schema is {flat!r:.80}; give it a name, a description and parameters")
        known = ("name", "description", "parameters")
        for key in flat:
            if key not in known:
                raise ValueError(f"unknown key tool_schema.{key}{nearest(str(key), known)}")
        nothing = {"type": "object", "properties": {}, "required": []}
        return cls(flat.get("name", ""), flat.get("description", ""), flat.get("parameters", nothing))

    @cached_property
    def openai(self) -> dict[str, Any]:
        """What `apply_chat_template(tools=[...])` takes."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@validated(frozen=True, config=ConfigDict(strict=True))
class ToolResponse:
    """What a tool answers: a text, and lists of pictures and of videos; how they are stored is the model's business."""

    text: str | None = None
    image: list[Any] | None = None
    video: list[Any] | None = None

    def is_empty(self) -> bool:
        return not (self.text or self.image or self.video)

    def is_text_only(self) -> bool:
        return bool(self.text) and not (self.image or self.video)

    def for_readers(self) -> str:
        """What a model that cannot see is told."""
        unseen = [f"[{kind}: not shown, as you read text alone]" for kind in ("image", "video") if getattr(self, kind)]
        return "\n".join([self.text or "", *unseen]).removeprefix("\n")


@dataclass(frozen=True, slots=True)
class ToolContext:
    """Where in the episode a call was made. A tool that has a parameter of this type, or one called `agent_data`, gets
    it; the model does not see the parameter."""

    episode: str
    turn: int = 0
    messages: tuple[Mapping[str, Any], ...] = ()


ResultStatus = Literal[
    "ok",
    "unknown_tool",
    "invalid_json",
    "invalid_arguments",
    "malformed_call",
    "too_many_calls",
    "tool_error",  # the tool raised
    "timeout",
]


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The answer to one call, whatever became of it: one tool message."""

    call: ToolCall
    status: ResultStatus
    response: ToolResponse  # as the model is shown it
    reward: float = 0.0  # belongs to the turn that made the call
    metrics: Mapping[str, Any] = field(default_factory=dict)


class ToolError(Exception):
    """A tool's own refusal; the model reads the text."""


class ToolFault(EpisodeFailure):
    """The tool, not the model, is at fault: its author made a mistake, or a service behind it is down.

    The model is not shown it, and the episode cannot be learnt from.
    """
