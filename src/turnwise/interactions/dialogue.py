"""One episode's dialogue with a simulated user. What goes wrong on the user's side comes back as a record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnwise.calling import Overrun, bounded, fitting, invoke
from turnwise.figures import finite, shown
from turnwise.interactions.base import BaseInteraction
from turnwise.surrogates import encodable
from turnwise.types import Message


@dataclass(frozen=True, slots=True)
class UserTurn:
    """What a user answers."""

    done: bool  # nothing follows; the text is then not shown to the model
    text: str
    reward: float  # of the model's turn before
    metrics: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""  # the user is at fault, so that the episode cannot be learnt from; empty: all is well


class Dialogue:
    """Made by `Interactions.open`. Left, it finalizes what it started, exactly once, however the episode ended."""

    def __init__(self, interaction: BaseInteraction, episode: str, kwargs: Mapping[str, Any]):
        self._interaction = interaction
        self._episode = episode
        self._kwargs = dict(kwargs)
        self._instance: str | None = None  # None: not started, or finalized
        self.error = ""  # the first thing that went wrong on the user's side

    async def __aenter__(self) -> Dialogue:
        try:
            started = await self._call(self._interaction.start_interaction, self._episode)
            self._instance = self._episode if started is None else started
        except _Failure as failure:
            self.error = str(failure)
        return self

    async def __aexit__(self, *error: object) -> None:
        instance, self._instance = self._instance, None
        if instance is not None:
            try:
                await self._call(self._interaction.finalize_interaction, instance)
            except _Failure as failure:
                self.error = self.error or str(failure)

    async def reply(self, messages: Sequence[Message]) -> UserTurn:
        """The user's answer to the conversation, whose last message is the model's reply."""
        if self.error or self._instance is None:
            return UserTurn(True, "", 0.0, error=self.error or "the dialogue is over")
        try:
            answer = await self._call(self._interaction.generate_response, self._instance, list(messages))
            return _checked(self._interaction.name, answer)
        except _Failure as failure:
            self.error = str(failure)
            return UserTurn(True, "", 0.0, error=self.error)

    async def _call(self, method: Callable[..., Any], *args: Any) -> Any:
        """Call a method with those of the sample's arguments that it takes, in time."""
        name, limit = self._interaction.name, self._interaction.timeout_s
        try:
            return await bounded(invoke(method, *args, **fitting(method, "interaction_kwargs", self._kwargs)), limit)
        except Overrun as error:
            raise _Failure(f"interaction {name} did not answer within {limit:g} s") from error
        except Exception as error:
            said = " ".join(str(error).split())[:300]
            raise _Failure(f"interaction {name} failed in {method.__name__}: {type(error).__name__}: {said}") from error


class _Failure(Exception):
    """The user, not the model, is at fault."""


def _checked(name: str, answer: Any) -> UserTurn:
    match answer:
        case (bool(done), str(text), reward, Mapping() as metrics) if (value := finite(reward)) is not None:
            # Half a surrogate pair, which no tokenizer takes, becomes a question mark.
            return UserTurn(done, encodable(text), value, metrics)
    raise _Failure(f"interaction {name} answered {shown(answer)}; answer (done, text, finite reward, dict of figures)")
