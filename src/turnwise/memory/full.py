"""The whole episode, append-only: each prompt extends the one before, so an episode packs into one row."""

from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.memory.chat import asked, reply, system
from turnwise.protocols import Ask
from turnwise.types import Message, Observation, Turn


@dataclass(frozen=True)
class Full:
    """Shows every past turn exactly as it was shown and sampled.

    An invalid action is the exception: it is shown as the default that was played, and a new row begins.
    """

    span = None

    async def prompt(self, past: Sequence[Turn], index: int, observation: Observation, ask: Ask) -> list[Message]:
        messages = system(past[0].observation if past else observation)
        for turn in past:
            messages += [asked(turn.observation), reply(turn)]
        return [*messages, asked(observation)]
