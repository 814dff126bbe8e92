"""The world of Baba Is You: things in cells, rules read off the words among them, and what one step does.

Worlds never change: a step makes a new one. Knows nothing of tasks, seeds or sentences.

    BABA IS YOU .        The three words in a row make a rule. Pushed apart they make none,
    baba .  . ball       and pushed together anew they make another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

NOUNS = ("baba", "wall", "ball", "key", "door")
PROPERTIES = ("you", "win", "stop", "push", "pull", "move", "lose", "open", "shut")
COLOURS = ("red", "blue", "green")
ACTIONS = ("idle", "up", "right", "down", "left")

Outcome = Literal["win", "lose"] | None


class Thing(NamedTuple):
    kind: Literal["object", "noun", "is", "property", "colour", "border"]  # all but objects and the border are words
    name: str  # of a word: what it says
    colour: str = ""  # of an object; it decides nothing unless a rule names a colour
    turned: bool = False  # MOVE takes an object right, and left once it has turned around


class Rule(NamedTuple):
    """What the words say: `Rule("baba", "you")`, `Rule("ball", "key")`, or `Rule("ball", "win", "red")`."""

    noun: str
    predicate: str  # a property, or the noun that it turns into
    colour: str = ""  # none: of any colour

    def covers(self, thing: Thing) -> bool:
        return thing.name == self.noun and thing.kind == "object" and self.colour in ("", thing.colour)


BORDER = Thing("border", "border")
IS = Thing("is", "is")


def word(name: str) -> Thing:
    return Thing("noun" if name in NOUNS else "property" if name in PROPERTIES else "colour", name)


@dataclass(frozen=True)
class World:
    width: int
    cells: tuple[tuple[Thing, ...], ...]  # row by row, each a stack from bottom to top; the outermost are border

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """In the order of their IS, across before down."""
        return tuple(self._read())

    def _read(self) -> Iterator[Rule]:
        for spot, stack in enumerate(self.cells):
            if stack and stack[-1].kind == "is":
                for stride in (1, self.width):
                    noun, predicate = self.top(spot - stride), self.top(spot + stride)
                    if noun and predicate and noun.kind == "noun" and predicate.kind in ("noun", "property"):
                        before = self.top(spot - 2 * stride)
                        colour = before.name if before and before.kind == "colour" else ""
                        yield Rule(noun.name, predicate.name, colour)

    def top(self, spot: int) -> Thing | None:
        return self.cells[spot][-1] if self.cells[spot] else None

    @cached_property
    def objects(self) -> list[tuple[int, Thing]]:
        """Where they are and what, row by row, each stack from bottom to top."""
        filled = [(spot, stack) for spot, stack in enumerate(self.cells) if stack]
        return [(spot, thing) for spot, stack in filled for thing in stack if thing.kind == "object"]

    @cached_property
    def granted(self) -> dict[str, list[Rule]]:
        """The rules by what they grant."""
        return {rule.predicate: [one for one in self.rules if one.predicate == rule.predicate] for rule in self.rules}

    def has(self, thing: Thing, predicate: str) -> bool:
        return thing.kind == "object" and any(rule.covers(thing) for rule in self.granted.get(predicate, ()))

    def pushable(self, thing: Thing) -> bool:
        return thing.kind not in ("object", "border") or self.has(thing, "push")

    def solid(self, thing: Thing) -> bool:
        """Whether it keeps others out, once pushing it has failed. A PUSH object that is stuck can be walked upon."""
        return thing.kind != "object" or self.has(thing, "stop")

    def find(self, predicate: str) -> list[tuple[int, Thing]]:
        """The objects with a property and where they are, row by row."""
        rules = self.granted.get(predicate)
        return [place for place in self.objects if any(rule.covers(place[1]) for rule in rules)] if rules else []

    def stride(self, direction: str) -> int:
        """From a cell to the next one in a direction."""
        return {"up": -self.width, "right": 1, "down": self.width, "left": -1}[direction]


def step(world: World, action: str) -> tuple[World, Outcome]:
    """The world after an action, and how it ended, if it did.

    The rules as they stood before decide. What is YOU moves, then what is MOVE; YOU in one cell with WIN wins, and with
    LOSE loses unless another wins; then the words are read anew and objects turn into others. Idle leaves all as it is.
    """
    if action == "idle":
        return world, None
    motion = _Motion(world)
    stride = world.stride(action)
    # The foremost first: then none is in the way of another, and which way they go makes no difference.
    for spot, thing in sorted(world.find("you"), key=lambda place: place[0], reverse=stride > 0):
        motion.move(spot, thing, stride)
    after = World(world.width, tuple(motion.cells))
    outcome = _outcome(world, after)
    for spot, thing in world.find("move"):
        if motion.stays(spot, thing):  # not pushed meanwhile
            motion.march(spot, thing)
            after = World(world.width, tuple(motion.cells))
    changes = [rule for rule in after.rules if rule.predicate in NOUNS]
    if changes:
        after = World(world.width, tuple(tuple(_turn(stack, changes)) for stack in after.cells))
    return after, outcome


def _outcome(before: World, after: World) -> Outcome:
    """What came of it that YOU stands where it now stands."""
    if not (before.granted.keys() & {"win", "lose"}):
        return None
    yous = {spot for spot, thing in after.objects if before.has(thing, "you")}
    touched = [thing for spot, thing in after.objects if spot in yous]
    if any(before.has(thing, "win") for thing in touched):
        return "win"
    return "lose" if any(before.has(thing, "lose") for thing in touched) else None


def _turn(stack: tuple[Thing, ...], changes: list[Rule]) -> Iterator[Thing]:
    """Each object becomes whatever the rules say, all at once: two opposite rules swap two kinds."""
    for thing in stack:
        names = [rule.predicate for rule in changes if rule.covers(thing)]
        yield from (thing._replace(name=name) for name in names or [thing.name])


class _Motion:
    """A world in the middle of a step."""

    def __init__(self, world: World):
        self.world = world
        self.cells = list(world.cells)
        self.arrived = Counter[tuple[int, Thing]]()  # who came into a cell: not to be taken for an equal that was there

    def stays(self, spot: int, thing: Thing) -> bool:
        """Whether one that was there before the step is there still."""
        return self.cells[spot].count(thing) > self.arrived[spot, thing]

    def move(self, spot: int, thing: Thing, stride: int) -> bool:
        """Move one object, what it pushes, and what it pulls; whether it went."""
        went = moving = self.stays(spot, thing) and self._push(spot, [thing], stride)
        while moving:
            spot -= stride
            pulled = [thing for thing in self.cells[spot] if self.world.has(thing, "pull")]
            moving = bool(pulled) and self._push(spot, pulled, stride)
        return went

    def march(self, spot: int, thing: Thing) -> None:
        """Move an object the way it faces; if it cannot go, turn it around."""
        if not self.move(spot, thing, -1 if thing.turned else 1):
            around = thing._replace(turned=not thing.turned)
            self.cells[spot] = (*_without(self.cells[spot], thing), around)
            self.move(spot, around, -1 if around.turned else 1)

    def _push(self, spot: int, movers: list[Thing], stride: int) -> bool:
        """Move things to the next cell, and what can be pushed there before them; whether they left."""
        ahead = [thing for thing in self.cells[spot + stride] if self.world.pushable(thing)]
        if ahead:
            self._push(spot + stride, ahead, stride)
        there = self.cells[spot + stride]
        opened = [(mover, lock) for mover in movers for lock in there if self._opens(mover, lock)]
        locks = [lock for _, lock in opened]
        if any(self.world.solid(thing) for thing in there if thing not in locks):
            return False
        self.cells[spot] = _without(self.cells[spot], *movers)
        there += tuple(movers)
        for pair in opened:  # one key, one lock
            if all(thing in there for thing in pair):
                there = _without(there, *pair)
        for thing in set(movers):
            self.arrived[spot, thing] = min(self.arrived[spot, thing], self.cells[spot].count(thing))
            self.arrived[spot + stride, thing] += max(0, there.count(thing) - self.cells[spot + stride].count(thing))
        self.cells[spot + stride] = there
        return True

    def _opens(self, one: Thing, other: Thing) -> bool:
        has = self.world.has
        return (has(one, "open") and has(other, "shut")) or (has(one, "shut") and has(other, "open"))


def _without(stack: tuple[Thing, ...], *gone: Thing) -> tuple[Thing, ...]:
    left = list(stack)
    for thing in gone:
        left.remove(thing)
    return tuple(left)
