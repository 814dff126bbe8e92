"""The tools of a run, which all episodes share."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from turnwise.calling import left_over
from turnwise.components import nearest
from turnwise.tools.base import BaseTool
from turnwise.tools.box import ToolBox
from turnwise.tools.function import as_tool
from turnwise.tools.shorten import Shorten

# Per-sample arguments and the method that takes them.
_KWARGS = {
    "create_kwargs": "create",
    "execute_kwargs": "execute",
    "calc_reward_kwargs": "calc_reward",
    "release_kwargs": "release",
}
_SHORTEN = Shorten()


class Toolset:
    """Tools by name, and the rules for calling them; `open` lends them to one episode."""

    def __init__(
        self,
        tools: Iterable[Any],
        *,
        max_parallel_calls: int = 1,
        shorten: Callable[[str], str] = _SHORTEN,
        example: str = "",
    ):
        """`shorten` cuts what tools answer, at 256 characters if not told otherwise.

        `example` is what the answer to a malformed call quotes.
        """
        if max_parallel_calls < 1:
            raise ValueError(f"max_parallel_calls is {max_parallel_calls}; it must be 1 or more")
        self.tools: dict[str, BaseTool] = {}
        for tool in map(as_tool, tools):
            if tool.name in self.tools:
                raise ValueError(f"two tools are called {tool.name!r}; rename one of them")
            self.tools[tool.name] = tool
        for tool in self.tools.values():
            tool.toolsets += 1
        self.max_parallel_calls = max_parallel_calls
        self.shorten = shorten
        self.example = example
        self.gates = {
            name: asyncio.Semaphore(tool.limits.max_concurrency)
            for name, tool in self.tools.items()
            if tool.limits.max_concurrency is not None
        }

    def open(
        self,
        episode: str,
        selection: Sequence[str] | None = None,
        tools_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> ToolBox:
        """The box of one episode: `async with toolset.open("e1") as box`.

        `selection` names the tools that this sample may use (None: all); `tools_kwargs` maps a tool's name to its
        create_kwargs, execute_kwargs, calc_reward_kwargs and release_kwargs. What no tool would see is a ValueError.
        """
        names = list(self.tools) if selection is None else list(selection)
        for name in (*names, *(tools_kwargs or {})):
            if name not in self.tools:
                raise ValueError(f"the sample names the tool {name!r}{nearest(name, self.tools)}")
        for name, groups in (tools_kwargs or {}).items():
            _refuse_unseen(self.tools[name], groups)
        return ToolBox(self, episode, {name: self.tools[name] for name in names}, tools_kwargs or {})

    def close(self) -> None:
        """Close the tools that nobody else has."""
        for tool in self.tools.values():
            tool.toolsets -= 1
            if not tool.toolsets:
                tool.close()


def _refuse_unseen(tool: BaseTool, groups: Mapping[str, Any]) -> None:
    for group, values in groups.items():
        if group not in _KWARGS:
            raise ValueError(f"unknown key tools_kwargs.{tool.name}.{group}{nearest(str(group), _KWARGS)}")
        if not isinstance(values, Mapping):
            raise ValueError(f"tools_kwargs.{tool.name}.{group} is {values!r:.80}; write keys and values")
        unseen = left_over(getattr(tool, _KWARGS[group]), group, dict(values))
        if unseen or {"instance_id", "parameters"} & values.keys():
            raise ValueError(
                f"tools_kwargs.{tool.name}.{group} has {', '.join(sorted(unseen)) or 'a reserved name'}, which "
                f"{type(tool).__name__}.{_KWARGS[group]} does not take"
            )
