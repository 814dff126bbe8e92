"""A tool that lives as long as an episode: created once, called often, released once."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from turnwise.tools.records import ToolResponse, ToolSchema
from turnwise.tools.validate import validator


@dataclass(frozen=True)
class Limits:
    """How a tool may be called. In a tool file these keys stand in `config`, beside the tool's own."""

    timeout_s: float = 30.0  # of one call, creation and release included as calls of their own
    max_concurrency: int | None = None  # calls at the same time, over all episodes, of any of its methods
    serial: bool = False  # calls of one episode follow one another, in the order written
    retries: int = 0  # further attempts after the tool raised
    eager_create: bool = False  # create when the episode begins; else at the first call

    def __post_init__(self) -> None:
        if not (isinstance(self.timeout_s, int | float) and math.isfinite(self.timeout_s) and self.timeout_s > 0):
            raise ValueError(f"timeout_s is {self.timeout_s!r}; it must be a number of seconds above 0")
        if self.max_concurrency is not None and not (
            isinstance(self.max_concurrency, int) and self.max_concurrency >= 1
        ):
            raise ValueError(f"max_concurrency is {self.max_concurrency!r}; it must be 1 or more, or null for no limit")
        for key in ("serial", "eager_create"):
            if not isinstance(getattr(self, key), bool):
                raise ValueError(f"{key} is {getattr(self, key)!r}; it must be true or false")
        if not isinstance(self.retries, int) or self.retries < 0:
            raise ValueError(f"retries is {self.retries!r}; it must be 0 or more")


_LIMITS = tuple(field.name for field in fields(Limits))


class BaseTool:
    """Override `execute`, and what else the tool needs. Methods may be plain functions; those run in a thread.

    One object serves all episodes, many at a time: what belongs to an episode is kept under its `instance_id`.

    `config` is the tool's own part of the tool file. The schema comes from there too, or from the class by
    `get_openai_tool_schema`. Parameters beyond those shown here are filled by name: `create(self, instance_id,
    ground_truth)` takes its second argument from the sample's `create_kwargs`; a parameter called `create_kwargs`
    takes them all, and so do `execute_kwargs`, `calc_reward_kwargs` and `release_kwargs`. `execute` may also have
    `agent_data`, a ToolContext.
    """

    toolsets = 0  # that have it: one that a recipe names by its place in a module is of training and evaluation

    def __init__(self, config: Mapping[str, Any] | None = None, tool_schema: Any = None):
        config = dict(config or {})
        kind = config.pop("type", "native")
        if kind != "native":
            raise ValueError(f"config.type is {kind!r}; a tool of a class is native, and MCP servers have mcp_servers")
        self.limits = Limits(**{key: config.pop(key) for key in _LIMITS if key in config})
        self.config = config
        self.tool_schema = ToolSchema.of(self.get_openai_tool_schema() if tool_schema is None else tool_schema)
        self.name = self.tool_schema.name

    def get_openai_tool_schema(self) -> Any:
        """The schema in either spelling, where the tool file has none."""
        raise ValueError(f"{type(self).__name__} has no tool_schema; write it in the tool file or in the class")

    @cached_property
    def _check(self) -> Any:
        return validator(self.tool_schema.parameters)

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as `execute` gets them. Raises ValueError, of one line, for the model."""
        self._check(arguments)
        return dict(arguments)

    async def create(self, instance_id: str | None = None) -> tuple[str | None, ToolResponse]:
        """Begin an episode. The id may be replaced by one of the tool's own.

        A response stands under the prompt where the tool is created with the episode (`eager_create`). Whatever is
        raised but ToolError gives the episode up: the model has no part in it.
        """
        return instance_id, ToolResponse()

    async def execute(self, instance_id: str, parameters: dict[str, Any]) -> Any:
        """Answer one call, with what `returns.py` lists. Raise ToolError to refuse, ToolFault to give up."""
        raise NotImplementedError(f"{type(self).__name__} has no execute")

    async def calc_reward(self, instance_id: str) -> float:
        """A reward for the whole episode, added to its last turn.

        Whoever overrides it is asked in every episode, by an instance that was never called if nobody called the tool.
        """
        return 0.0

    async def release(self, instance_id: str) -> None:
        """End an episode. Called exactly once for each `create` that came back."""

    def close(self) -> None:
        """Called when no episode will follow."""
