"""Demonstrations begin where a level goes on, however the moves before them ended."""

from typing import Any

import pytest

from turnwise.models.playing import play


class Short:
    """A level of two moves, which then says that it is over."""

    actions, default_action = ("add",), "add"

    def __init__(self, end: str):
        self.end = end

    def reset(self, seed: int) -> tuple[dict[str, str], dict[str, Any]]:
        self.moves = 0
        return {"text": "go", "instructions": ""}, {}

    def step(self, action: str) -> Any:
        assert self.moves < 2, "it was over"
        self.moves += 1
        over = self.moves == 2
        return {"text": "go", "instructions": ""}, 0.0, over and self.end == "won", over and self.end == "late", {}

    def expert(self) -> str:
        return "add"

    def thought(self) -> str:
        return ""


@pytest.mark.parametrize("end", ["won", "late"])
def test_no_move_follows_the_end_of_a_level(end):
    assert len(list(play(Short(end), "ACTION:", 20, 5, lambda _: 0.0, 0, "short", ahead=4))) == 20
