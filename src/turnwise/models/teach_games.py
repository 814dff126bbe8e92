"""Teaches BabaIsAI, Crafter, Sokoban and FrozenLake, each played with a share of random actions.

Whoever is shown two things at a time learns that one of two places is meant, and guesses; whoever is asked for many,
learns to find a place by its name. So there is a drill beside the games: made-up maps, and questions about them.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from turnwise.envs.babaisai import BabaIsAI
from turnwise.envs.crafter import CrafterText
from turnwise.envs.frozenlake import FrozenLakeText
from turnwise.envs.sokoban import SokobanText
from turnwise.models.make_tiny import Demonstration
from turnwise.models.playing import play
from turnwise.seeds import derive

_NOUNS = (
    *("baba", "ball", "door", "key", "wall", "is", "lose", "push", "stop", "win", "you"),
    *("coal", "cow", "diamond", "furnace", "grass", "iron", "lava", "path", "plant", "sand", "skeleton", "stone"),
    *("table", "tree", "water", "zombie", "box", "floor", "goal", "hole", "target"),
)
_SIMPLE = ("Move West", "Move East", "Move North", "Move South", "Do")  # of Crafter's actions
_MOST, _ASKED, _FAR = 10, 5, 8  # things on a made-up map, questions about them, and steps to each side


@dataclass(frozen=True)
class Lesson:
    """How much of a game is shown, and how poorly."""

    guesses: float  # share of random actions
    turns: int
    length: int = 8  # turns of a level after which another is begun: many levels teach how to read
    ahead: int = 0  # moves of the expert, at most, before the first that is shown
    memories: tuple[int, ...] = (0, 0, 0, 0, 1)  # turns that prompts remember; the whole board is seen
    often: tuple[str, ...] = ()  # actions that are guessed four times as often as others


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
            "goto_win-distr_obj": Lesson(0.9, turns=10_000, ahead=3),
            "two_room-goto_win": Lesson(0.9, turns=3_000, ahead=10),
            "two_room-goto_win-distr_obj_rule": Lesson(0.9, turns=10_000, ahead=10),
            "two_room-maybe_break_stop-goto_win": Lesson(0.9, turns=7_000, ahead=20),
            "crafter": Lesson(0.7, turns=14_000, length=300, memories=(0, 1, 1, 1, 2), often=_SIMPLE),
            "sokoban": Lesson(0.8, turns=12_000, ahead=8),
            "frozenlake": Lesson(0.8, turns=7_000, ahead=3),
            "frozenlake-slippery": Lesson(0.8, turns=7_000, ahead=3),
        }
    )
    drill: int = 20_000  # made-up maps
    cue: str = "Answer with THINK: and ACTION:"  # the answer format, as the recipes for this model word it

    def demonstrations(self, seed: int) -> list[Demonstration]:
        """The drill comes first."""
        shown = [one for game, lesson in self.lessons.items() for one in self._show(game, lesson, seed)]
        return [*islice(made_up(seed), self.drill), *shown]

    def _show(self, game: str, lesson: Lesson, seed: int) -> Iterator[Demonstration]:
        level, guesses = GAMES[game](), lesson.guesses
        shown = self.cue, lesson.turns, lesson.length, lambda _: guesses, seed, game, lesson.ahead, lesson.memories
        return play(level, *shown, lesson.often)


def made_up(seed: int) -> Iterator[Demonstration]:
    """Questions for the places of things and words on maps of no game, worded as BabaIsAI or Crafter would; endless."""
    rng = random.Random(derive("made-up maps", seed))
    while True:
        crafter = rng.random() < 0.25
        kinds = ("{}",) if crafter else ("a {}", "word `{}`")
        names = rng.sample([kind.format(noun) for noun in _NOUNS for kind in kinds], rng.randint(2, _MOST))
        places = {name: _place(rng, crafter) for name in names}
        wall = kinds[0].format("wall")
        walls = [f"{wall} {_place(rng, crafter)}" for _ in range(rng.choice((0, 0, 4)))]  # so no place is the wall's
        lines = [*(f"{name} {place}" for name, place in places.items()), *walls]
        rng.shuffle(lines)
        known = [name for name in names if name != wall or not walls]
        asked = rng.sample(known, min(_ASKED, len(known)))
        called = [name if name.startswith("word") else f"the {name.removeprefix('a ')}" for name in asked]
        text = "\n".join([*lines, f"Where? {', '.join(called)}"])
        say = "The nearest {} is {}." if crafter else "I see {} {}."
        reply = "\n".join(say.format(name, places[name]) for name in asked)
        yield Demonstration([{"role": "user", "content": text}], reply)


def _place(rng: random.Random, crafter: bool) -> str:
    """Somewhere else than here, as the games say it."""
    ways = (("north", "south"), ("west", "east")) if crafter else (("left", "right"), ("up", "down"))
    parts: list[str] = []
    while not parts:
        for steps, way in zip((rng.randint(-_FAR, _FAR), rng.randint(-_FAR, _FAR)), ways, strict=True):
            if steps:
                parts.append(f"{abs(steps)} step{'s' * (abs(steps) > 1)} {way[steps > 0]}")
    return " and ".join(parts)
