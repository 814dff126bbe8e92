"""Plain functions as tools."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

from turnwise.calling import invoke
from turnwise.tools.base import BaseTool
from turnwise.tools.records import ToolContext, ToolSchema
from turnwise.tools.signature import read_signature

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__turnwise_tool__"


class FunctionTool(BaseTool):
    """A tool without a life of its own: nothing is created or released, nothing is known of the sample."""

    def __init__(self, function: Callable[..., Any], name: str | None = None, schema: Any = None, **limits: Any):
        """With a `schema`, nothing is inferred, and arguments are checked against it as they are."""
        self._function = function
        self._signature = None if schema is not None else read_signature(function)
        if self._signature is not None:
            inferred = self._signature
            schema = ToolSchema(name or inferred.name, inferred.description, inferred.parameters)
        super().__init__(limits, schema)
        if self.config:
            raise ValueError(f"function_tool does not take {', '.join(self.config)}")

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return super().validate(arguments) if self._signature is None else self._signature.validate(arguments)

    async def execute(self, instance_id: str, parameters: dict[str, Any], agent_data: Any = None) -> Any:
        if self._signature is None:
            return await invoke(self._function, **parameters)
        context = agent_data or ToolContext(instance_id)
        positional, named = self._signature.bind(parameters, context)
        return await invoke(self._function, *positional, **named)


@overload
def function_tool(function: F, /) -> F: ...
@overload
def function_tool(name: str | None = None, /, *, schema: Any = None, **limits: Any) -> Callable[[F], F]: ...
def function_tool(name: Any = None, /, *, schema: Any = None, **limits: Any) -> Any:
    """Mark a function as a tool: `@function_tool`, `@function_tool("name")`, `@function_tool(timeout_s=5)`.

    The function stays what it was. Its schema is read when tools are loaded; `schema` replaces it. Limits are those
    of `Limits`.
    """
    if callable(name):
        return function_tool()(name)

    def mark(function: F) -> F:
        setattr(function, _MARK, {"name": name, "schema": schema, **limits})
        return function

    return mark


def is_marked(thing: Any) -> bool:
    return callable(thing) and isinstance(getattr(thing, _MARK, None), dict)


def as_tool(thing: Any) -> BaseTool:
    """A tool from a tool, or from a function, marked or not."""
    if isinstance(thing, BaseTool):
        return thing
    if isinstance(thing, type) or not callable(thing):
        raise ValueError(f"{thing!r:.80} is no tool; give a function or an object of a class that extends BaseTool")
    return FunctionTool(thing, **getattr(thing, _MARK, {}))
