"""Answers the prompt of a sample, with tools and in talk with a simulated user where there are any."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from turnwise.agents.chat import Chat, count_figures, sample_of
from turnwise.agents.judge import Judge
from turnwise.failures import EpisodeFailure
from turnwise.interactions import Dialogue, Interactions, load_interactions
from turnwise.protocols import Session, Setting
from turnwise.tokencheck import Mode
from turnwise.toolcalls import UNREADABLE, find_format
from turnwise.tools import Shorten, ToolBox, Toolset, load_tools
from turnwise.types import Ending, Message, Sample


class ToolAgent:
    """Generates, runs the calls that it finds, and goes on until a reply calls nothing and no user answers it."""

    def __init__(
        self,
        setting: Setting,
        tools: Sequence[str] = (),
        format: str = "hermes",
        interaction: str = "",
        max_turns: int = 16,
        max_parallel_calls: int = 1,
        max_malformed_turns: int = 2,
        max_tool_reply: int = 256,
        tool_reply_unit: Literal["chars", "tokens"] = "chars",
        tool_reply_side: Literal["left", "right", "middle"] = "middle",
    ):
        """`tools` are files or dotted paths, `interaction` a file of simulated users.

        After `max_turns` turns an episode is over. `max_malformed_turns` turns whose calls could not be read are
        answered; with one more the episode is over. What a tool says is cut to `max_tool_reply` characters or tokens,
        from the left, the right or the middle.
        """
        limits = {"max_turns": max_turns, "max_malformed_turns": max_malformed_turns, "max_tool_reply": max_tool_reply}
        for name, value in {**limits, "max_parallel_calls": max_parallel_calls}.items():
            if value < 1:
                raise ValueError(f"agent.{name} is {value}; it must be 1 or more")
        self._max_turns = max_turns
        self._max_malformed_turns = max_malformed_turns
        self._limit = setting.config.rollout.max_prompt_tokens
        self._check: Mode = setting.config.rollout.token_check
        self._codec = setting.codec
        self._format = find_format(format)
        shorten = Shorten(max_tool_reply, tool_reply_side)
        if tool_reply_unit == "tokens":
            shorten = replace(shorten, encode=setting.codec.encode, decode=setting.codec.text)

        def make_tools() -> Toolset:
            example = self._format.example
            return Toolset(load_tools(tools), max_parallel_calls=max_parallel_calls, shorten=shorten, example=example)

        # One set for all slots, since limits of concurrency and connections to servers are of the run.
        self._toolset = setting.shared.once(f"tools {tools} {format} {max_parallel_calls} {shorten}", make_tools)
        self._users: Interactions | None = None
        if interaction:
            self._users = setting.shared.once(f"users {interaction}", partial(load_interactions, Path(interaction)))
        self._judge = Judge(setting)

    def refuse(self, sample: Sample) -> None:
        """A ValueError where it asks for tools or a user that there are not."""
        self._toolset.open("", sample.tools, sample.tools_kwargs)
        if self._users is not None:
            self._users.open("", sample.interaction_kwargs)
        elif name := sample.interaction_kwargs.get("name"):
            raise ValueError(
                f"interaction_kwargs of the sample name the user {name!r}, and there is none; set agent.interaction, "
                "or agent.use=single_turn to do without users and tools"
            )

    async def run(self, session: Session) -> Ending:
        sample = sample_of(session)
        async with AsyncExitStack() as stack:
            box = await stack.enter_async_context(self._toolset.open(session.name, sample.tools, sample.tools_kwargs))
            user = None
            if self._users is not None:
                user = await stack.enter_async_context(self._users.open(session.name, sample.interaction_kwargs))
            begun = opening(sample, box)
            chat = Chat(session, self._codec, begun, self._limit, box.schemas, self._format)
            final_prompt = await self._talk(session, chat, box, user)
            session.reward(sum((await box.final_rewards()).values()))
            chat.check(self._check)
            return await self._judge(session, sample, chat, final_prompt)

    async def _talk(self, session: Session, chat: Chat, box: ToolBox, user: Dialogue | None) -> tuple[int, ...]:
        """Until nothing more is to be said; returns the prompt that would have come next where a limit stopped it."""
        malformed = 0
        while session.turns < self._max_turns and chat.fits:
            parsed = await chat.reply()
            if parsed.calls:
                malformed += all(call.status in UNREADABLE for call in parsed.calls)
                if malformed > self._max_malformed_turns:
                    return ()
                results = await box.run(parsed.calls, session.turns, chat.messages, session.span)
                chat.answer(parsed.calls, [result.response.for_readers() for result in results])
                session.reward(sum(result.reward for result in results))
                for result in results:
                    session.count(f"tools/{result.status}")
                    count_figures(session, f"tools/{result.call.name}", result.metrics)
            elif user is None or not await _goes_on(session, chat, user):
                return ()
        session.count("limits/max_turns" if session.turns >= self._max_turns else "limits/max_prompt_tokens")
        return chat.final_prompt


def opening(sample: Sample, box: ToolBox) -> list[Message]:
    """The prompt of the sample, and under it what tools said when they were created."""
    *before, last = sample.prompt
    created = [response.text for _, response in box.created if response.text]
    return [*before, {**last, "content": "\n\n".join([last["content"], *created])}]


async def _goes_on(session: Session, chat: Chat, user: Dialogue) -> bool:
    """Let the user answer; False where that was the end."""
    answer = await user.reply(chat.messages)
    if answer.error:
        raise EpisodeFailure(answer.error)
    session.reward(answer.reward)
    count_figures(session, "user", answer.metrics)
    if not answer.done:
        chat.say(answer.text)
    return not answer.done
