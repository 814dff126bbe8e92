"""The chat calls of a program that is not ours, as turns of one episode.

The program keeps its own messages, and sends all of them with each call. Replies among them that were sampled here are
known by the messages up to them; they get their ids back, so that a longer conversation extends the ids of a shorter
one. What the program has changed is rendered anew, and then opens a row of its own.
"""

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

from turnwise.agents.chat import Chat, PromptTooLong
from turnwise.calling import Exited
from turnwise.components import load_object, with_colon
from turnwise.failures import EpisodeFailure
from turnwise.figures import finite, shown
from turnwise.protocols import Session, Setting
from turnwise.toolcalls import ParsedReply, ToolFormat
from turnwise.types import Generation, Message, MessageCall

_READABLE = ("ok", "unknown_tool")  # a call of a tool that does not exist is for the program to refuse
_PARTING_S = 10.0  # for what is cancelled to end: more than a command has until it is killed


@dataclass(frozen=True)
class Answer:
    """What a program is told: the text beside the calls that could be read, and these. If none could, all the text."""

    content: str
    calls: Sequence[MessageCall]
    turn: int  # of the episode, from 0
    prompt_ids: tuple[int, ...]
    generation: Generation

    @property
    def finish_reason(self) -> Literal["stop", "length", "tool_calls"]:
        return "tool_calls" if self.calls else self.generation.finish_reason


class Refusal(Exception):
    """A call that is no turn; the text tells the program why."""


class OverLimit(Refusal):
    """A call that the limits of the recipe do not allow: the episode is over."""


class Calls:
    """The calls of one episode. They are answered one at a time, in the order in which they come, so turns have one."""

    def __init__(self, session: Session, setting: Setting, max_turns: int, tool_format: ToolFormat):
        self.session = session
        self._codec = setting.codec
        self._rollout = setting.config.rollout
        self._max_turns = max_turns
        self._format = tool_format
        self._replies: list[str] = []
        self._sampled: dict[str, Message] = {}  # by the messages up to them
        self._newest: Chat | None = None
        self._one_at_a_time = asyncio.Lock()
        self._over: asyncio.Future[tuple[int, ...]] = asyncio.get_running_loop().create_future()
        self._open: set[asyncio.Task[Any]] = set()
        self._quiet_since = 0.0

    @property
    def messages(self) -> Sequence[Message]:
        """Of the newest call, with its reply."""
        return self._newest.messages if self._newest else ()

    @property
    def text(self) -> str:
        """All that was sampled, and nothing that was shown."""
        return "\n".join(self._replies)

    async def reply(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> Answer:
        """Answer a call. `tools` are in OpenAI's form. Raises Refusal."""
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            async with self._one_at_a_time:
                return await self._reply(messages, tools)
        except Refusal:
            raise
        except EpisodeFailure as failure:
            self.fail(failure)
            raise Refusal(str(failure)) from failure
        except Exception as error:
            self.fail(error)
            raise
        finally:
            self._open.discard(task)

    def reward(self, amount: float, turn: int | None = None) -> None:
        """Raises Refusal."""
        try:
            self.session.reward(amount, turn)
        except EpisodeFailure as error:  # the program is told, and may go on
            raise Refusal(str(error)) from error

    def end(self, how: Literal["terminated", "truncated"]) -> None:
        """Let the episode be over. Raises Refusal."""
        if self._newest is None:
            raise Refusal("an episode cannot end before its first chat call")
        if not self._over.done():
            self._over.set_result(self._newest.final_prompt if how == "truncated" else ())

    def fail(self, error: Exception) -> None:
        """Let the episode be lost, whatever the program makes of it."""
        if not self._over.done():
            self._over.set_exception(error)

    async def play(self, program: Awaitable[Any], timeout_s: float) -> tuple[int, ...]:
        """Run the program until it ends, or the episode does; then it is cancelled. A number that it returns is earned
        by its last turn.

        Returns the prompt that would have come next where the episode was truncated. Raises EpisodeFailure where the
        program neither called nor ended for `timeout_s` seconds: the time in which it waits for us does not count.
        """
        asyncio.get_running_loop().set_task_factory(_task)  # a program starts tasks of its own
        running = asyncio.ensure_future(program)
        try:
            await self._wait(running, timeout_s)
            if not self._over.done():
                self._earn(self._result(running))
        finally:
            if not self._over.done():
                self._over.set_result(())
            await _part([running, *self._open])
        final_prompt = self._over.result()
        if self._newest is not None:
            self._newest.check(self._rollout.token_check)
        return final_prompt

    async def _wait(self, running: asyncio.Future[Any], timeout_s: float) -> None:
        clock = asyncio.get_running_loop().time
        self._quiet_since = clock()
        left = timeout_s
        while left > 0:
            done, _ = await asyncio.wait({running, self._over}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if done:
                return
            left = timeout_s if self._open else self._quiet_since + timeout_s - clock()
        raise EpisodeFailure(f"the program of {self.session.name} neither called nor ended for {timeout_s:g} s")

    def _result(self, ended: asyncio.Future[Any]) -> Any:
        if ended.cancelled():
            raise EpisodeFailure(f"the program of {self.session.name} cancelled itself")
        try:
            return ended.result()
        except EpisodeFailure:
            raise
        except Exception as error:
            said = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            raise EpisodeFailure(f"the program of {self.session.name} failed: {said}") from error

    def _earn(self, value: Any) -> None:
        """Of a program that ended by itself: a number, or nothing."""
        if not self.session.turns:
            raise EpisodeFailure(f"the program of {self.session.name} ended without a chat call")
        if value is None:
            return
        amount = finite(value)
        if amount is None:
            raise EpisodeFailure(
                f"the program of {self.session.name} returned {shown(value)}; return a finite number, or nothing"
            )
        self.session.reward(amount)

    async def _reply(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Answer:
        if self._over.done():
            raise Refusal("the episode is over")
        chat = self._chat(messages, tools)
        turn, prompt = self.session.turns, chat.prompt
        if turn >= self._max_turns:
            self.session.count("limits/max_turns")
            self._over.set_result(prompt)
            raise OverLimit(f"the episode has had its {self._max_turns} turns (agent.max_turns)")
        try:
            parsed = await chat.reply()
        finally:  # and not where a call is refused, or a program could repeat it for ever
            self._quiet_since = asyncio.get_running_loop().time()
        assert chat.generation is not None
        self._replies.append(chat.text)
        self._newest = chat
        answer = _answer(chat, parsed, turn, prompt)
        shown: Message = {"role": "assistant", "content": answer.content, "tool_calls": answer.calls}
        self._sampled[_marks([*messages, shown])[-1]] = chat.newest
        if len(answer.calls) < len(parsed.calls):
            self.session.count("calls/unreadable", len(parsed.calls) - len(answer.calls))
        return answer

    def _chat(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Chat:
        known = [self._sampled.get(mark) for mark in _marks(messages)]
        seen = max((number for number, reply in enumerate(known, 1) if reply), default=0)
        conversation = [reply or message for reply, message in zip(known, messages, strict=True)]
        try:
            limit = self._rollout.max_prompt_tokens
            return Chat(self.session, self._codec, conversation, limit, tools, self._format, seen)
        except PromptTooLong as error:
            if not self.session.turns:
                raise
            self.session.count("limits/max_prompt_tokens")
            self._over.set_result(self._newest.held(error.prompt) if self._newest else error.prompt)
            raise OverLimit(str(error)) from error
        except ValueError as error:  # of the template, which does not take the conversation
            raise Refusal(str(error)) from error


def _task(loop: asyncio.AbstractEventLoop, coroutine: Any, **how: Any) -> asyncio.Task[Any]:
    """A task whose wish to exit is a failure of its own, where asyncio would end the run."""

    async def run() -> Any:
        try:
            return await coroutine
        except SystemExit as error:
            raise Exited(f"it tried to exit ({error.code})") from error

    task = asyncio.Task(run(), loop=loop, **how)
    task.add_done_callback(lambda _: coroutine.close())  # cancelled before it began, it was never awaited
    return task


async def _part(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Cancel them, and wait until they have ended; one that does not is left behind."""
    for task in tasks:
        task.cancel()
    done, _ = await asyncio.wait(tasks, timeout=_PARTING_S)
    for task in done:
        if not task.cancelled():
            task.exception()  # or asyncio would tell that nobody has seen it


def _answer(chat: Chat, parsed: ParsedReply, turn: int, prompt: tuple[int, ...]) -> Answer:
    assert chat.generation is not None
    written = chat.newest.get("tool_calls", ())
    calls = [one for one, call in zip(written, parsed.calls, strict=True) if call.status in _READABLE]
    content = chat.text if parsed.calls and not calls else parsed.content
    return Answer(content, calls, turn, prompt, chat.generation)


def _marks(messages: Sequence[Message]) -> list[str]:
    """For each message one of all up to it. Blanks around a text do not count, which frameworks tend to strip."""
    so_far, marks = blake2b(digest_size=16), []
    for message in messages:
        calls = [(call["id"], call["function"]) for call in message.get("tool_calls", ())]
        told = [message["role"], message["content"].strip(), calls, message.get("tool_call_id", "")]
        so_far.update(json.dumps(told, sort_keys=True).encode())
        marks.append(so_far.hexdigest())
    return marks


def check_limits(timeout_s: float, **counts: int) -> None:
    """Raises ValueError."""
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"agent.{name} is {count}; it must be 1 or more")
    if timeout_s <= 0:
        raise ValueError(f"agent.timeout_s is {timeout_s}; it must be above 0")


def load_program(key: str, dotted: str, given: Sequence[str]) -> Callable[..., Any]:
    """The function that a key of the recipe names, which can ask for what is `given` by the names of its parameters."""
    function = load_object(key, with_colon(dotted))
    if not callable(function):
        raise ValueError(f"{key} is {dotted!r}, which is no function")
    for name, one in inspect.signature(function).parameters.items():
        if one.default is one.empty and name not in given:
            raise ValueError(f"{key} {dotted} asks for {name}; it can ask for {', '.join(given)}")
    return function


def asked_of(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What of all that is given the function asks for."""
    return {name: given[name] for name in inspect.signature(function).parameters if name in given}
