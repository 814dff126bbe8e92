"""The chat calls of a program that is not ours, as turns of one episode.

The program keeps its own messages, and sends all of them with each call. Replies among them that were sampled here are
known by the messages up to them; they get their ids back, so that a longer conversation extends the ids of a shorter
one. What the program has changed is rendered anew, and then opens a row of its own.
"""

import asyncio
import json
import math
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from numbers import Real
from typing import Any, Literal

from turnwise.agents.chat import Chat, PromptTooLong
from turnwise.failures import EpisodeFailure
from turnwise.protocols import Codec, Session
from turnwise.tokencheck import Mode
from turnwise.toolcalls import ParsedReply, ToolFormat
from turnwise.types import Generation, Message, MessageCall

_READABLE = ("ok", "unknown_tool")  # a call of a tool that does not exist is for the program to refuse


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
    """A call that the limits of the recipe do not allow: the episode is truncated."""


class Calls:
    """The calls of one episode. They are answered one at a time, in the order in which they come, so turns have one."""

    def __init__(self, session: Session, codec: Codec, limit: int, max_turns: int, tool_format: ToolFormat):
        """`limit` is that of a prompt, in tokens."""
        self.session = session
        self._codec = codec
        self._limit = limit
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
            self._fail(failure)
            raise Refusal(str(failure)) from failure
        except Exception as error:
            self._fail(error)
            raise
        finally:
            self._open.discard(task)
            self._quiet_since = asyncio.get_running_loop().time()

    def reward(self, amount: float, turn: int | None = None) -> None:
        """Raises Refusal."""
        try:
            self.session.reward(amount, turn)
        except EpisodeFailure as error:  # the program is told, and may go on
            raise Refusal(str(error)) from error

    def reward_whole(self, value: Any) -> None:
        """What the program returned: a number, which its last turn has earned, or nothing. Raises EpisodeFailure."""
        if value is None:
            return
        if not isinstance(value, Real) or not math.isfinite(value):
            raise EpisodeFailure(
                f"the program of {self.session.name} returned {value!r:.80}; return a finite number, or nothing"
            )
        self.session.reward(float(value))

    def check(self, mode: Mode) -> None:
        """Count whether the newest conversation reads otherwise than the template writes it (rollout.token_check)."""
        if self._newest is not None:
            self._newest.check(mode)

    def end(self, how: Literal["terminated", "truncated"]) -> None:
        """Let the episode be over. Raises Refusal."""
        if self._newest is None:
            raise Refusal("an episode cannot end before its first chat call")
        if not self._over.done():
            self._over.set_result(self._newest.prompt if how == "truncated" else ())

    async def play(self, program: Awaitable[Any], timeout_s: float) -> tuple[Any, tuple[int, ...]]:
        """Run the program until it ends, or the episode does; then it is cancelled.

        Returns what it returned (None if it was cancelled), and the prompt that would have come next where the episode
        was truncated. Raises EpisodeFailure where it neither called nor ended for `timeout_s` seconds: the time in
        which it waits for us does not count.
        """
        running = asyncio.ensure_future(program)
        try:
            await self._wait(running, timeout_s)
            if self._over.done():
                return None, self._over.result()
            value = self._result(running)
            if not self.session.turns:
                raise EpisodeFailure(f"the program of {self.session.name} ended without a chat call")
            return value, ()
        finally:
            if not self._over.done():
                self._over.set_result(())
            left = [running, *self._open]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

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

    async def _reply(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Answer:
        if self._over.done():
            raise Refusal("the episode is over")
        chat = self._chat(messages, tools)
        turn, prompt = self.session.turns, chat.prompt
        if turn >= self._max_turns:
            self._over.set_result(prompt)
            raise OverLimit(f"the episode has had its {self._max_turns} turns (agent.max_turns)")
        parsed = await chat.reply()
        assert chat.generation is not None
        self._replies.append(chat.text)
        self._newest = chat
        answer = _answer(chat, parsed, turn, prompt)
        shown: Message = {"role": "assistant", "content": answer.content, "tool_calls": answer.calls}
        self._sampled[_marks([*messages, shown])[-1]] = chat.messages[-1]
        if len(answer.calls) < len(parsed.calls):
            self.session.count("calls/unreadable", len(parsed.calls) - len(answer.calls))
        return answer

    def _chat(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Chat:
        known = [self._sampled.get(mark) for mark in _marks(messages)]
        seen = max((number for number, reply in enumerate(known, 1) if reply), default=0)
        conversation = [reply or message for reply, message in zip(known, messages, strict=True)]
        parameters = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in tools}
        tool_format = self._format if tools else None
        try:
            return Chat(self.session, self._codec, conversation, self._limit, tools, parameters, tool_format, seen)
        except PromptTooLong as error:
            if not self.session.turns:
                raise
            self._over.set_result(error.prompt)
            raise OverLimit(str(error)) from error
        except ValueError as error:  # of the template, which does not take the conversation
            raise Refusal(str(error)) from error

    def _fail(self, error: Exception) -> None:
        if not self._over.done():
            self._over.set_exception(error)


def _answer(chat: Chat, parsed: ParsedReply, turn: int, prompt: tuple[int, ...]) -> Answer:
    assert chat.generation is not None
    written = chat.messages[-1].get("tool_calls", ())
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
