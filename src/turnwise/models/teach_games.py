"""Teaches BabaIsAI, Crafter, Sokoban and FrozenLake, each played with a share of random actions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from turnwise.envs.babaisai import BabaIsAI
from turnwise.envs.crafter import CrafterText
from turnwise.envs.frozenlake import FrozenLakeText
from turnwise.envs.sokoban import SokobanText
from turnwise.models.make_tiny import Demonstration
from turnwise.models.playing import play


@dataclass(frozen=True)
class Lesson:
    """How much of a game is shown, and how poorly."""

    guesses: float  # share of random actions
    turns: int = 3_000
    length: int = 32  # turns of a level after which another is begun
    memories: tuple[int, ...] = (0, 0, 0, 0, 1)  # turns that prompts remember; the whole board is seen


GAMES: Mapping[str, Callable[[], Any]] = {
    "goto_win-distr_obj": partial(BabaIsAI, "goto_win-distr_obj"),
    "two_room-goto_win": partial(BabaIsAI, "two_room-goto_win"),
    "two_room-goto_win-distr_obj_rule": partial(BabaIsAI, "two_room-goto_win-distr_obj_rule"),
    "two_room-maybe_break_stop-goto_win": partial(BabaIsAI, "two_room-maybe_break_stop-goto_win"),
    "crafter": CrafterText,
    "sokoban": SokobanText,
    "frozenlake": FrozenLakeText,
    "frozenlake-slippery": partial(FrozenLakeText, slip=0.2),
}


@dataclass(frozen=True)
class GamesTeacher:
    """Plays every game of GAMES: what it says is true, what it does is right more often than by chance."""

    lessons: dict[str, Lesson] = field(
        default_factory=lambda: {
            "goto_win-distr_obj": Lesson(0.95),
            "two_room-goto_win": Lesson(0.95),
            "two_room-goto_win-distr_obj_rule": Lesson(0.95),
            "two_room-maybe_break_stop-goto_win": Lesson(0.9, turns=4_000),
            "crafter": Lesson(0.9, turns=8_000, length=300, memories=(0, 1, 1, 1, 2)),
            "sokoban": Lesson(0.8, turns=8_000),
            "frozenlake": Lesson(0.8),
            "frozenlake-slippery": Lesson(0.8),
        }
    )
    cue: str = "Answer with THINK: and ACTION:"  # the answer format, as the recipes for this model word it

    def demonstrations(self, seed: int) -> list[Demonstration]:
        return [one for game, lesson in self.lessons.items() for one in self._show(game, lesson, seed)]

    def _show(self, game: str, lesson: Lesson, seed: int) -> list[Demonstration]:
        guesses, memories = lesson.guesses, lesson.memories
        shown = play(
            GAMES[game](), self.cue, lesson.turns, lesson.length, lambda _: guesses, seed, game, memories=memories
        )
        return list(shown)
