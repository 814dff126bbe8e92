"""Plays a Gymnasium environment: observation, memory, prompt, generation, action, feedback, turn."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import isawaitable
from itertools import count
from typing import Any, get_args

from pydantic import TypeAdapter

from turnwise.envs.host import Host
from turnwise.failures import EnvironmentFailure, EpisodeFailure, first_of
from turnwise.protocols import ActionParser, Memory, Session, Setting
from turnwise.surrogates import encodable
from turnwise.types import ROLES, Action, Ending, Feedback, Message, Observation, Status, Turn, is_message


@dataclass
class Standing:
    """Where an episode stands: all that must survive a crash."""

    observation: Observation
    past: list[Turn] = field(default_factory=list)  # what the memory may read, without prompts and log-probs
    actions: list[str] = field(default_factory=list)  # all that were played: they bring the environment back
    left_out: int = 0  # of the past, the oldest turns for which the newest prompt had no room


_STANDING = TypeAdapter(Standing)
AskIds = Callable[[tuple[int, ...], int], Awaitable[str]]  # of a question, the n-th before this turn, the reply


class Gym:
    """One environment, kept for all episodes of its slot and replaced by a fresh one when it fails."""

    def __init__(self, setting: Setting):
        config = setting.config
        self.config = config
        self.task = setting.task
        self.codec = setting.codec
        self.memory: Memory = config.memory.make("memory")
        self.host = Host(config.environment, self.task, setting.shared.workers)
        self._standing: Standing | None = None  # None: no episode is under way

    def prepare(self) -> None:
        """Wait for the environment."""
        _ = self.host.offer, self.parser

    @cached_property
    def parser(self) -> ActionParser:
        offer = self.host.offer
        return self.config.parser.make("parser", actions=[*offer.actions], default=offer.default_action)

    async def run(self, session: Session) -> Ending:
        """Play an episode to its end, or go on with the one that is under way."""
        try:
            if self._standing is None:
                self._standing = Standing(self._cued(await self.host.reset(session.seed)))
                session.write(self._standing.observation.instructions)
            ending = None
            while ending is None:
                ending = await self._turn(session, self._standing)
        except (EpisodeFailure, asyncio.CancelledError) as error:
            self._standing = None
            if isinstance(error, EnvironmentFailure):
                self.host.renew()
            raise
        self._standing = None
        return ending

    def _cued(self, observation: Observation) -> Observation:
        """With the answer format of the parser at its end."""
        cue = "\n".join(part for part in (observation.cue, encodable(self.parser.cue)) if part)
        return replace(observation, cue=cue)

    async def _turn(self, session: Session, standing: Standing) -> Ending | None:
        """Play one turn; the episode's end, if this was its last."""
        observation = standing.observation
        told: dict[int, str] = {}  # what the memory was answered: where its prompt is too long, it is written again

        async def ask(question: tuple[int, ...], number: int) -> str:
            if number not in told:
                turn = await self._consult(session, observation, question)
                self._record(session, standing, turn)
                told[number] = turn.text
            return told[number]

        prompt, shortened = await self._prompt(standing, ask)
        generation = await session.generate(prompt)
        if shortened:
            session.shortened()
        text = self.codec.text(generation.token_ids)
        action = await self._understand(text)
        feedback = await self.host.step(action.text)
        invalid = action.status == "invalid"
        reward = feedback.reward - invalid * self.config.environment.invalid_penalty
        shown = self.parser.format(action.thought, action.text) if invalid else text
        tokens = self.codec.tokens_from(generation.token_ids, action.start)
        bare = self.parser.format("", action.text)
        self._record(
            session, standing, Turn(observation, prompt, generation, action, tokens, reward, text, shown, bare)
        )
        standing.actions.append(action.text)
        standing.observation = self._cued(feedback.observation)
        _write(session, observation, text, action, reward)
        return await self._ending(standing, feedback, session)

    async def _ending(self, standing: Standing, feedback: Feedback, session: Session) -> Ending | None:
        limit = self.config.rollout.max_episode_turns
        if feedback.terminated:
            final_prompt = ()
        elif feedback.truncated or (limit is not None and session.turns >= limit):
            final_prompt = await self._next_prompt(standing)
        else:
            return None
        session.write(feedback.observation.text)
        for name, value in feedback.figures.items():
            session.count(f"environment/{name}", value)
        success = feedback.success
        if success is None and not feedback.truncated and self.config.environment.reward == "binary":
            success = False  # many environments tell it at their own end alone; this one is ours
        return Ending(final_prompt, success, feedback.progression)

    async def _understand(self, text: str) -> Action:
        """What a reply means: what the parser cannot read may be a near-miss that the environment knows."""
        action = self.parser.parse(text)
        if not _is_of(action, text):
            raise ValueError(
                f"parser: {type(self.parser).__name__} answers with {action!r:.200}; let it be an Action, whose status "
                f"is valid or invalid and whose start is a place in the reply, here from 0 to {len(text)}"
            )
        meaning = await self.host.translate(action.said) if action.status == "invalid" else None
        return replace(action, text=meaning, status="translated") if meaning else action

    async def _consult(self, session: Session, observation: Observation, question: tuple[int, ...]) -> Turn:
        """A question of the memory, as a turn of reward 0."""
        generation = await session.generate(question)
        text = self.codec.text(generation.token_ids)
        return Turn(observation, question, generation, None, 0, 0.0, text, text, text)

    async def _prompt(self, standing: Standing, ask: AskIds) -> tuple[tuple[int, ...], bool]:
        """The next prompt; where it, or what the memory asks, is too long, without the oldest turns, and then True."""
        found = None
        if standing.left_out:  # last time, and nearly as many now; but a memory that asks is not asked twice
            with suppress(_Asked):
                found = await self._fit(standing, min(standing.left_out, len(standing.past)), _halt)
        prompt, standing.left_out = found or await self._fit(standing, 0, ask)
        return prompt, standing.left_out > 0

    async def _fit(self, standing: Standing, start: int, ask: AskIds) -> tuple[tuple[int, ...], int]:
        """The prompt without as few of the oldest turns as can be, and how many these are, sought from `start` on.

        A memory that asks is called again with the same past, less the oldest turns, and has the answers that it had.
        """
        past, prompt, tokens, left_out = [*standing.past], None, 0, start
        while prompt is None:
            try:
                prompt = await self._render(standing, past[left_out:], ask)
            except _TooLong as problem:
                tokens, left_out = problem.tokens, left_out + 1
            if left_out > len(past):
                raise ValueError(
                    f"rollout.max_prompt_tokens is {self.config.rollout.max_prompt_tokens}, but the instructions and "
                    f"one observation of {self.task} alone take {tokens} tokens; raise it"
                )
        with suppress(_TooLong):
            while 0 < left_out <= start:
                prompt = await self._render(standing, past[left_out - 1 :], ask)
                left_out -= 1
        return prompt, left_out

    async def _render(self, standing: Standing, past: Sequence[Turn], ask: AskIds) -> tuple[int, ...]:
        """The prompt by such a past; one that is too long, or such a question, is a _TooLong."""

        def fitting(messages: list[Message]) -> tuple[int, ...]:
            if not isinstance(messages, list) or not messages or not all(map(is_message, messages)):
                name = type(self.memory).__name__
                raise ValueError(
                    f"memory: {name} answers with {messages!r:.200}; let it be a list of messages, each with a role, "
                    f"one of {', '.join(ROLES)}, and a text as its content"
                )
            prompt = self.codec.prompt(messages)
            if len(prompt) > self.config.rollout.max_prompt_tokens:
                raise _TooLong(len(prompt))
            return prompt

        numbers = count()

        async def ask_fitting(messages: list[Message]) -> str:
            return await ask(fitting(messages), next(numbers))

        writing = self.memory.prompt(past, len(standing.actions), standing.observation, ask_fitting)
        if not isawaitable(writing):
            raise ValueError(f"memory: {type(self.memory).__name__}.prompt is no coroutine; write async def prompt")
        try:
            return fitting(await writing)
        except BaseExceptionGroup as errors:  # of a memory that asks several questions side by side
            raise first_of(errors) from None

    async def _next_prompt(self, standing: Standing) -> tuple[int, ...]:
        """The prompt that would follow, never sampled: a memory that would ask first has asked it."""
        try:
            return (await self._prompt(standing, _halt))[0]
        except _Asked as asked:
            return asked.question

    def _record(self, session: Session, standing: Standing, turn: Turn) -> None:
        session.record(turn)
        past = standing.past
        past.append(_spared(turn))
        if self.memory.span is not None:
            while past and sum(not turn.of_memory for turn in past) > self.memory.span:
                past.pop(0)

    def state(self) -> dict[str, Any] | None:
        return _STANDING.dump_python(self._standing, mode="json") if self._standing else None

    async def restore(self, state: dict[str, Any] | None, seed: int) -> bool:
        """Bring the episode back by playing its actions again; False if it then looks otherwise.

        An environment that is not a function of its seed and actions cannot be brought back.
        """
        if state is None:
            return True
        standing = _STANDING.validate_python(state)
        try:
            observation = await self.host.reset(seed)
            for action in standing.actions:
                observation = (await self.host.step(action)).observation
        except EnvironmentFailure:
            observation = None
        if observation is None or self._cued(observation) != standing.observation:
            self.host.renew()
            return False
        self._standing = standing
        return True


class _Asked(BaseException):
    """A memory asked the model while only the next prompt was wanted. No error, so that no memory catches it."""

    def __init__(self, question: tuple[int, ...]):
        self.question = question


def _is_of(action: Any, text: str) -> bool:
    """Whether somebody's parser answers as it is to."""
    known = isinstance(action, Action) and action.status in get_args(Status)
    return known and isinstance(action.start, int) and 0 <= action.start <= len(text)


async def _halt(question: tuple[int, ...], number: int) -> str:
    raise _Asked(question)


def _spared(turn: Turn) -> Turn:
    """Without what no memory reads and every checkpoint would hold: a long episode has a long prompt in each turn."""
    return replace(turn, prompt_ids=(), generation=replace(turn.generation, logprobs=(), versions=()))


class _TooLong(Exception):
    """A prompt of so many tokens is longer than allowed."""

    def __init__(self, tokens: int):
        self.tokens = tokens


def _write(session: Session, observation: Observation, text: str, action: Action, reward: float) -> None:
    verdict = f" ({action.status}: {action.said!r})" if action.status != "valid" else ""
    session.write(
        f"-- turn {session.turns}\n{observation.text}\n>> {text}\n=> {action.text}{verdict}  reward {reward:g}"
    )
