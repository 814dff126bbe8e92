"""What a slot has of the batch under way: segments that are closed, and the turns of the one that is open."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter

from turnwise.types import Segment, Turn, acted

_SEGMENTS, _TURNS = TypeAdapter(list[Segment]), TypeAdapter(list[Turn])


class Share:
    """A turn is sure when it is known what follows it; sure turns alone are cut off as the batch."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.turns: list[Turn] = []  # of the open segment
        self.acted = 0  # sure turns of the batch, those not counted that a memory asked for
        self._sure = 0  # of the open segment

    @property
    def sure(self) -> Sequence[Turn]:
        return self.turns[: self._sure]

    @property
    def unsure(self) -> Sequence[Turn]:
        return self.turns[self._sure :]

    def settle(self) -> None:
        """Now it is known how the episode goes on after its newest turn."""
        self.acted += acted(self.unsure)
        self._sure = len(self.turns)

    def reward(self, amount: float, number: int) -> None:
        """Add to what a turn of the open segment has earned; those that a memory asked for are not counted."""
        place = [place for place, turn in enumerate(self.turns) if not turn.of_memory][number]
        self.turns[place] = replace(self.turns[place], reward=self.turns[place].reward + amount)

    def close(self, segment: Segment) -> None:
        """The open segment is this one, as far as it is sure; what is not sure opens the next."""
        self.segments.append(segment)
        del self.turns[: len(segment.turns)]
        self._sure = 0

    def hand_out(self) -> list[Segment]:
        """The closed segments, to the batch; the next one begins."""
        segments, self.segments, self.acted = self.segments, [], 0
        return segments

    def drop(self) -> int:
        """Let go of the open segment; tells how many turns it had."""
        dropped = len(self.turns)
        self.acted -= acted(self.sure)
        self.turns, self._sure = [], 0
        return dropped

    def state(self, waiting: Sequence[Segment], opened: bool) -> dict[str, Any]:
        """Behind segments that wait for a batch; with the open segment, or without."""
        return {
            "segments": _SEGMENTS.dump_python([*waiting, *self.segments], mode="json"),
            "turns": _TURNS.dump_python(self.turns, mode="json") if opened else [],
        }

    def restore(self, state: dict[str, Any], opened: bool) -> None:
        """Turns of the open segment are sure when the agent asks again."""
        self.segments = _SEGMENTS.validate_python(state["segments"])
        self.turns = _TURNS.validate_python(state["turns"]) if opened else []
        self.acted = sum(segment.acted for segment in self.segments)
