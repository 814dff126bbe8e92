"""Teaches BabaIsAI, Crafter, Sokoban and FrozenLake, each played with a share of random actions."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from turnwise.envs.babaisai import ACTIONS, BabaIsAI
from turnwise.envs.crafter import CrafterText
from turnwise.envs.frozenlake import FrozenLakeText
from turnwise.envs.sokoban import SokobanText
from turnwise.models.make_tiny import Demonstration
from turnwise.models.playing import ask, play

_THING = re.compile(r"^a (\w+) (\d.*)$", re.MULTILINE)  # of BabaIsAI, and where it is


@dataclass(frozen=True)
class Lesson:
    """How much of a game is shown, and how poorly."""

    guesses: float  # share of random actions
    turns: int
    length: int = 8  # turns of a level after which another is begun: many levels teach how to read
    ahead: int = 0  # moves of the expert, at most, before the first that is shown
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
            "goto_win-distr_obj": Lesson(0.9, turns=4_000, ahead=3),
            "two_room-goto_win": Lesson(0.9, turns=3_000, ahead=10),
            "two_room-goto_win-distr_obj_rule": Lesson(0.9, turns=5_000, ahead=10),
            "two_room-maybe_break_stop-goto_win": Lesson(0.9, turns=8_000, ahead=20),
            "crafter": Lesson(0.9, turns=8_000, length=300, memories=(0, 1, 1, 1, 2)),
            "sokoban": Lesson(0.8, turns=12_000, ahead=8),
            "frozenlake": Lesson(0.8, turns=7_500, ahead=3),
            "frozenlake-slippery": Lesson(0.8, turns=7_500, ahead=3),
        }
    )
    questions: dict[str, int] = field(  # where several things are, in BabaIsAI
        default_factory=lambda: {"goto_win-distr_obj": 7_500, "two_room-goto_win-distr_obj_rule": 7_500}
    )
    cue: str = "Answer with THINK: and ACTION:"  # the answer format, as the recipes for this model word it

    def demonstrations(self, seed: int) -> list[Demonstration]:
        shown = [one for game, lesson in self.lessons.items() for one in self._show(game, lesson, seed)]
        asked = [one for game, number in self.questions.items() for one in islice(_ask(game, seed), number)]
        return [*shown, *asked]

    def _show(self, game: str, lesson: Lesson, seed: int) -> Iterator[Demonstration]:
        level, guesses = GAMES[game](), lesson.guesses
        shown = self.cue, lesson.turns, lesson.length, lambda _: guesses, seed, game, lesson.ahead, lesson.memories
        return play(level, *shown)


def _ask(game: str, seed: int) -> Iterator[Demonstration]:
    return ask(GAMES[game](), _THING.findall, "I see a {} {}.".format, ACTIONS, 4, 4, seed, f"questions {game}")
