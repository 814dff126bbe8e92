"""The tools of one episode: every call gets an answer, and whatever was created is released.

What the model did wrong, and what a tool refuses or fails at, goes back to the model as a tool message. What is no
fault of the model's (a reward that is no number, a service that is down) is raised as ToolFault, after all other calls
of the turn have ended; the episode is then lost, as with an environment that fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from turnwise.calling import Exited, Overrun, bounded, fitting, invoke
from turnwise.surrogates import encodable
from turnwise.toolcalls import ToolCall
from turnwise.tools.base import BaseTool
from turnwise.tools.records import ResultStatus, ToolContext, ToolError, ToolFault, ToolResponse, ToolResult
from turnwise.tools.returns import normalise

if TYPE_CHECKING:
    from turnwise.protocols import Spans, Tell
    from turnwise.tools.toolset import Toolset

_UNREADABLE = ("missing_name", "malformed_structure", "unclosed_block")


class _Refusal(Exception):
    """A call that ends with a message to the model instead of an answer."""

    def __init__(self, status: ResultStatus, text: str):
        super().__init__(text)
        self.status: ResultStatus = status


class ToolBox:
    """Made by `Toolset.open`. `counts` tells how often each status came up, and `release_error` and `fault` besides."""

    def __init__(
        self, toolset: Toolset, episode: str, tools: Mapping[str, BaseTool], kwargs: Mapping[str, Mapping[str, Any]]
    ):
        self.episode = episode
        self.counts: Counter[str] = Counter()
        self.created: list[tuple[str, ToolResponse]] = []  # what tools said on creation, for the first prompt
        self._toolset = toolset
        self._tools = tools
        self._kwargs = kwargs
        self._instances: dict[str, str] = {}  # tool -> instance id, oldest first
        self._locks = {name: asyncio.Lock() for name in tools}

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """For the chat template."""
        return [tool.tool_schema.openai for tool in self._tools.values()]

    @property
    def parameters(self) -> dict[str, Mapping[str, Any]]:
        """For the reader of replies: tool name -> JSON Schema."""
        return {name: tool.tool_schema.parameters for name, tool in self._tools.items()}

    async def __aenter__(self) -> ToolBox:
        try:
            for tool in self._tools.values():
                if tool.limits.eager_create:
                    async with self._gate(tool):
                        await self._instance(tool)
        except ToolError as error:
            await self.release()
            raise ToolFault(f"a tool cannot begin the episode: {_first_line(error)}") from error
        except BaseException:
            await self.release()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.release()

    async def run(
        self,
        calls: Sequence[ToolCall],
        turn: int = 0,
        messages: Sequence[Mapping[str, Any]] = (),
        span: Spans | None = None,
    ) -> list[ToolResult]:
        """Answer the calls of one reply, side by side; the results are in the order of the calls.

        Raises ToolFault. `turn` and `messages` are for tools that want to know. Each call is a `span` of kind "tool",
        where anybody wants to hear of it.
        """
        context = ToolContext(self.episode, turn, tuple(messages))
        allowed = [number for number, call in enumerate(calls) if call.status == "ok"][
            : self._toolset.max_parallel_calls
        ]
        answers = (
            self._told(span or _unheard, call, call.status != "ok" or number in allowed, context)
            for number, call in enumerate(calls)
        )
        # With exceptions as results, so that no call is left running behind one that failed.
        results = await asyncio.gather(*answers, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                self.counts["fault"] += 1
                raise result
            self.counts[result.status] += 1
        return list(results)  # type: ignore[arg-type]  # the exceptions have been raised

    async def final_rewards(self) -> dict[str, float]:
        """The rewards that tools which override `calc_reward` give to the whole episode, though none called them."""
        rewards = {}
        for name, tool in self._tools.items():
            if type(tool).calc_reward is not BaseTool.calc_reward:
                try:
                    async with self._gate(tool):
                        instance = await self._instance(tool)
                        value = await self._method(tool, tool.calc_reward, "calc_reward_kwargs", instance)
                except Exception as error:
                    raise ToolFault(f"tool {name} has no reward to give: {_first_line(error)}") from error
                _, rewards[name], _ = self._checked(tool, ("", value))
        return rewards

    async def release(self) -> None:
        """Release every instance, newest first. A second call finds nothing to do."""
        while self._instances:
            name = next(reversed(self._instances))
            async with self._gate(self._tools[name]):
                if name in self._instances:
                    await self._release(name, self._instances.pop(name))

    async def _told(self, span: Spans, call: ToolCall, allowed: bool, context: ToolContext) -> ToolResult:
        with span("tool", call.name, call.arguments) as note:
            result = await self._answer(call, allowed, context)
            note(result.response.text, status=result.status, reward=result.reward)
        return result

    async def _answer(self, call: ToolCall, allowed: bool, context: ToolContext) -> ToolResult:
        try:
            response, reward, metrics = await self._execute(call, allowed, context)
        except _Refusal as refusal:
            return ToolResult(call, refusal.status, ToolResponse(encodable(str(refusal))))
        return ToolResult(call, "ok", self._shown(response), reward, metrics)

    async def _execute(
        self, call: ToolCall, allowed: bool, context: ToolContext
    ) -> tuple[ToolResponse, float, Mapping[str, Any]]:
        tool = self._callable(call)
        if not allowed:
            most = self._toolset.max_parallel_calls
            raise _Refusal("too_many_calls", f"This call was not made: at most {most} may be made in one turn.")
        try:
            json.dumps(call.arguments, ensure_ascii=False, default=str).encode()
            arguments = tool.validate(call.arguments)
        except UnicodeEncodeError as error:  # half a pair of surrogates, with which no tool can do anything
            raise _Refusal("invalid_arguments", f"The call of {tool.name} was not made: no valid text.") from error
        except (ValueError, RecursionError, OverflowError) as error:
            raise _Refusal("invalid_arguments", f"The call of {tool.name} was not made: {error}.") from error
        except Exception as error:
            raise ToolFault(f"tool {tool.name} cannot check its arguments: {_first_line(error)}") from error
        async with self._gate(tool):
            value = await self._attempts(tool, arguments, context)
        return self._checked(tool, value)

    def _gate(self, tool: BaseTool) -> contextlib.AbstractAsyncContextManager[Any]:
        return self._toolset.gates.get(tool.name) or contextlib.nullcontext()

    def _callable(self, call: ToolCall) -> BaseTool:
        """The tool that a well written call names."""
        tool = self._tools.get(call.name)
        if call.status == "unknown_tool" or (call.status == "ok" and tool is None):
            known = ", ".join(self._tools) or "none"
            raise _Refusal("unknown_tool", f"There is no tool {call.name!r:.80}. Available tools: {known}.")
        if tool is not None and call.status == "ok":
            return tool
        example = f" Write a call like this:\n{self._toolset.example}" if self._toolset.example else ""
        status: Any = "malformed_call" if call.status in _UNREADABLE else call.status
        raise _Refusal(status, f"The tool call could not be read: {call.flaw}.{example}")

    async def _attempts(self, tool: BaseTool, arguments: dict[str, Any], context: ToolContext) -> Any:
        for attempt in range(tool.limits.retries + 1):
            try:
                return await self._attempt(tool, dict(arguments), context)
            except _Refusal:
                raise
            except Exception as error:
                if attempt == tool.limits.retries:
                    if isinstance(error, ToolFault):
                        raise
                    raise _Refusal("tool_error", f"{tool.name} failed: {_first_line(error)}") from error
        raise AssertionError("there is always a last attempt")

    async def _attempt(self, tool: BaseTool, arguments: dict[str, Any], context: ToolContext) -> Any:
        async with self._locks[tool.name]:  # so that two calls at once create one instance
            instance = await self._instance(tool)
            if tool.limits.serial:
                return await self._use(tool, instance, arguments, context)
        return await self._use(tool, instance, arguments, context)

    async def _use(self, tool: BaseTool, instance: str, arguments: dict[str, Any], context: ToolContext) -> Any:
        try:
            return await self._method(tool, tool.execute, "execute_kwargs", instance, arguments, agent_data=context)
        except _Refusal:  # too slow, and so in an unknown state; the next call begins with a fresh instance
            if self._instances.get(tool.name) == instance:  # and not yet the next one
                del self._instances[tool.name]
                await self._release(tool.name, instance)
            raise

    async def _instance(self, tool: BaseTool) -> str:
        if tool.name not in self._instances:
            given = f"{self.episode}/{tool.name}"
            try:
                answer = await self._method(tool, tool.create, "create_kwargs", given)
            except (ToolError, ToolFault):
                raise
            except Exception as error:  # the model has no part in it, and cannot mend it; nor in one that hangs
                raise ToolFault(f"tool {tool.name} cannot begin the episode: {_first_line(error)}") from error
            if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], ToolResponse)):
                raise ToolFault(f"tool {tool.name}: create returned {answer!r:.80} instead of an id and a ToolResponse")
            instance, response = answer
            self._instances[tool.name] = given if instance is None else instance
            if not response.is_empty():
                self.created.append((tool.name, self._shown(response)))
        return self._instances[tool.name]

    async def _release(self, name: str, instance: str) -> None:
        tool = self._tools[name]
        try:
            await self._method(tool, tool.release, "release_kwargs", instance)
        except Exception:  # nobody is left to hear it
            self.counts["release_error"] += 1

    async def _method(self, tool: BaseTool, method: Callable[..., Any], whole: str, *args: Any, **more: Any) -> Any:
        """Call a method of the tool with the sample's arguments for it, in time."""
        values = dict(self._kwargs.get(tool.name, {}).get(whole, {}))
        call: Awaitable[Any] = invoke(method, *args, **fitting(method, whole, values, **more))
        try:
            return await bounded(call, tool.limits.timeout_s)
        except Overrun as error:
            said = f"{tool.name} did not answer within {tool.limits.timeout_s:g} s."
            raise _Refusal("timeout", said) from error

    def _checked(self, tool: BaseTool, value: Any) -> tuple[ToolResponse, float, Mapping[str, Any]]:
        try:
            return normalise(value)
        except Exception as error:  # an object of the tool's own may raise anything when it is made a text
            raise ToolFault(f"tool {tool.name} answered wrongly: {error}") from error

    def _shown(self, response: ToolResponse) -> ToolResponse:
        """Not too long. Pictures are never cut."""
        if response.text is None:
            return response
        return ToolResponse(self._toolset.shorten(encodable(response.text)), response.image, response.video)


def _unheard(*_: Any) -> contextlib.nullcontext[Tell]:
    return contextlib.nullcontext(lambda outputs, **attributes: None)


def _first_line(error: BaseException) -> str:
    """What went wrong, without the stack: the model can use no more, and paths are none of its business."""
    said = str(error).strip().splitlines()
    first = said[0][:300] if said else ""
    plain = isinstance(error, ToolError | Exited | _Refusal)
    return first if plain and first else f"{type(error).__name__}: {first}".removesuffix(": ")
