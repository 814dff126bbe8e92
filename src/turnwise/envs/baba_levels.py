"""The 40 Baba-Is-AI tasks of BALROG: how the levels of each are drawn.

Areas and odds are the original's. Unlike there, every draw comes from the generator that is handed in, and the rule
that `distr_win_rule` adds stands before anything else is placed, so that it never comes to lie on another word.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

import numpy as np

from turnwise.envs.baba_rules import BORDER, COLOURS, IS, Thing, World, word

SPLITS = ("train", "test")
TEST_SHARE = 5  # one layout in so many is for testing; no layout is in both splits

_DISTRACTED = ("", "-distr_obj", "-distr_rule", "-distr_obj_rule", "-distr_obj-irrelevant_rule")
_SUFFIXES = {
    "goto_win": _DISTRACTED,
    "make_win": _DISTRACTED,
    "two_room-goto_win": (*_DISTRACTED, "-distr_win_rule"),
    "two_room-break_stop-goto_win": _DISTRACTED,
    "two_room-maybe_break_stop-goto_win": _DISTRACTED,
    "two_room-make_win": (*_DISTRACTED, "-distr_win_rule"),
    "two_room-break_stop-make_win": _DISTRACTED,
    "two_room-make_you": ("",),
    "two_room-make_you-make_win": ("",),
    "two_room-make_wall_win": ("",),
}
TASKS = tuple(family + suffix for family, suffixes in _SUFFIXES.items() for suffix in suffixes)

Area = Sequence[tuple[int, int]]


def _area(left: int, top: int, right: int, bottom: int) -> Area:
    """The cells of a rectangle, its last column and row included."""
    return [(x, y) for y in range(top, bottom + 1) for x in range(left, right + 1)]


# One room: 8 x 8
BELOW_THE_RULE = _area(1, 2, 6, 6)
MIDDLE = _area(2, 2, 5, 5)
CORNERS_TWICE = [*_area(4, 6, 6, 6), *_area(4, 1, 6, 1), *_area(6, 1, 6, 6)]  # a draw hits a corner twice as often

# Two rooms: 13 x 9, with column 6 between them
LEFT, RIGHT, ANYWHERE = _area(1, 1, 4, 7), _area(7, 2, 10, 7), _area(1, 2, 11, 7)
LEFT_PUSHABLE, RIGHT_PUSHABLE = _area(2, 3, 5, 5), _area(7, 3, 10, 5)  # here a word can be pushed every way
LEFT_SQUARE, RIGHT_SQUARE = _area(2, 3, 4, 5), _area(8, 3, 10, 5)
RIGHT_STUCK = [*_area(11, 2, 11, 6), *_area(8, 7, 11, 7)]  # from here a word cannot be brought back


def draw(task: str, split: str, rng: np.random.Generator) -> World:
    """A level of a task. `train` and `test` share no layout: its digest tells which of the two it belongs to."""
    while True:
        world = (_two_rooms if task.startswith("two_room") else _one_room)(task, rng)
        layout = [(spot, thing.kind, thing.name) for spot, stack in enumerate(world.cells) for thing in stack]
        if (zlib.crc32(repr(layout).encode()) % TEST_SHARE == 0) == (split == "test"):
            return world


class _Sketch:
    """A level in the making."""

    def __init__(self, width: int, height: int, rng: np.random.Generator):
        self.width, self.height, self.rng = width, height, rng
        self.things: dict[tuple[int, int], Thing] = {}

    def rule(self, x: int, y: int, noun: str, predicate: str) -> None:
        self.things |= {(x, y): word(noun), (x + 1, y): IS, (x + 2, y): word(predicate)}

    def put(self, thing: Thing, area: Area) -> None:
        """Somewhere in the area where nothing is yet."""
        free = [place for place in area if place not in self.things]
        self.things[free[self.rng.integers(len(free))]] = thing

    def move(self, place: tuple[int, int], area: Area) -> None:
        self.put(self.things.pop(place), area)

    def objects(self, area: Area, *names: str) -> None:
        for name in names:
            self.put(Thing("object", name, COLOURS[self.rng.integers(len(COLOURS))]), area)

    def world(self) -> World:
        inside = set(_area(1, 1, self.width - 2, self.height - 2))
        places: Iterable[tuple[int, int]] = _area(0, 0, self.width - 1, self.height - 1)
        things = (self.things.get(place) if place in inside else BORDER for place in places)
        return World(self.width, tuple((thing,) if thing else () for thing in things))


def _kinds(rng: np.random.Generator) -> list[str]:
    """The kind that wins, the kind that distracts, and the kind that is not there."""
    return [("ball", "key", "door")[index] for index in rng.permutation(3)]


def _distractors(task: str, other: str, absent: str) -> tuple[list[str], list[str]]:
    """What a task adds beside its target: objects, and nouns that make no rule."""
    objects = [other] if "-distr_obj" in task or "-distr_win_rule" in task else []
    if "irrelevant_rule" in task:
        return objects, [absent]
    return objects, [other] if "_rule" in task else []


def _one_room(task: str, rng: np.random.Generator) -> World:
    sketch = _Sketch(8, 8, rng)
    target, other, absent = _kinds(rng)
    objects, nouns = _distractors(task, other, absent)
    sketch.rule(1, 6, "baba", "you")
    sketch.rule(1, 1, target, "win")
    if task.startswith("make_win"):
        sketch.move((1, 1), MIDDLE)
    for noun in nouns:
        sketch.put(word(noun), CORNERS_TWICE)
    sketch.put(Thing("object", "baba"), BELOW_THE_RULE)
    sketch.objects(BELOW_THE_RULE, target, *objects)
    return sketch.world()


def _two_rooms(task: str, rng: np.random.Generator) -> World:
    sketch = _Sketch(13, 9, rng)
    target, other, absent = _kinds(rng)
    sketch.things = {place: Thing("object", "wall") for place in _area(6, 1, 6, 7)}
    sketch.rule(9, 1, target, "win")
    if "make_you" in task:
        # The wall cannot be opened: its rule stands in the top row, where nobody can get at it.
        sketch.rule(1, 1, "wall", "stop")
        sketch.rule(1, 6, "baba", "you")
        sketch.put(word(other), LEFT_SQUARE)
        if task.endswith("make_win"):
            sketch.move((9, 1), RIGHT_SQUARE)
        sketch.put(Thing("object", "baba"), LEFT_SQUARE)
        sketch.objects(RIGHT, target, other)
    elif task.endswith("make_wall_win"):
        sketch.rule(2, 2, "wall", "stop")
        sketch.rule(1, 7, "baba", "you")
        sketch.move((9, 1), RIGHT_STUCK)
        sketch.put(word(absent), RIGHT_SQUARE)
        sketch.put(Thing("object", "baba"), LEFT_SQUARE)
        sketch.objects(RIGHT, target, other)
    else:
        objects, nouns = _distractors(task, other, absent)
        sketch.rule(1, 2, "wall", "stop")
        sketch.rule(1, 7, "baba", "you")
        if "distr_win_rule" in task:
            sketch.rule(9, 4, absent, "win")
        for noun in nouns:
            keep_out = "distr_obj_rule" in task or "distr_win_rule" in task
            sketch.put(word(noun), RIGHT_STUCK if keep_out else RIGHT_PUSHABLE)
        if "break_stop" not in task:
            sketch.move([(2, 2), (3, 2)][rng.integers(2)], LEFT_PUSHABLE)
        if "make_win" in task:
            sketch.move((9, 1), RIGHT_PUSHABLE)
        sketch.put(Thing("object", "baba"), LEFT_PUSHABLE)
        area = ANYWHERE if "maybe" in task else RIGHT if "break_stop" in task else LEFT
        sketch.objects(area, target, *objects)
    return sketch.world()
