"""The last few turns. With one or two of them a small model plays best (Verlog, table 1)."""

from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.memory.chat import asked, reply, shown, system
from turnwise.protocols import Ask
from turnwise.types import Message, Observation, Turn


@dataclass(frozen=True)
class Window:
    """Shows the last `turns` turns, each as its observation and the reply to it."""

    turns: int = 1
    thoughts: int | None = None  # so many of the newest past turns keep their reasoning; None: all
    clear_every: int | None = None  # forget everything every so many turns; None: never

    def __post_init__(self) -> None:
        if self.turns < 0:
            raise ValueError(f"memory.turns is {self.turns}; it must be 0 (no history) or more")
        if self.clear_every is not None and self.clear_every < 1:
            raise ValueError(f"memory.clear_every is {self.clear_every}; it must be 1 or more, or null for never")
        if self.thoughts is not None and self.thoughts < 0:
            raise ValueError(f"memory.thoughts is {self.thoughts}; it must be 0 or more, or null for all")

    @property
    def span(self) -> int:
        return self.turns

    async def prompt(self, past: Sequence[Turn], index: int, observation: Observation, ask: Ask) -> list[Message]:
        visible = self.turns if self.clear_every is None else min(self.turns, index % self.clear_every)
        past = past[len(past) - visible :] if visible < len(past) else past
        keep = len(past) if self.thoughts is None else self.thoughts
        messages = system(observation)
        for age, turn in zip(range(len(past), 0, -1), past, strict=True):
            messages += [shown(turn.observation), reply(turn, thought=age <= keep)]
        return [*messages, asked(observation)]
