"""Finds a way to win: a best-first search whose moves are not single steps but a walk up to something and a push.

Between two pushes only the place of YOU changes, so that one flood over the free cells stands for many steps.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from itertools import count, product

from turnwise.envs.baba_rules import ACTIONS, Outcome, Thing, World, step

DIRECTIONS = ACTIONS[1:]
CALM = ("you", "win", "lose", "stop", "push")  # under rules of these, a walk changes nothing else
FAR = 1000  # more than any level takes
PUSH_STEPS = 7  # what a push still needed counts: with 1 plans are shortest, but some take half a minute to find
BARRED_STEPS = 40  # what a walk counts that only a change of rules makes possible
AS_DRAWN = 10_000  # worlds looked at before giving up on a level as drawn; of 4,000 one took 2,468, most take 10
PLAYED_ON = 500  # likewise where somebody has moved, and there may be no way any more

Path = tuple["Path | None", str]  # the path before the last action, and that action


def solve(world: World, most_worlds: int = PLAYED_ON) -> list[str] | None:
    """Actions that win, as few as possible or nearly so; None if there are none or they are too hard to find."""
    order = count()
    frontier: list[tuple[int, int, int, World, Path | None]] = [(0, next(order), 0, world, None)]
    cheapest = {world.cells: 0}
    for _ in range(most_worlds):
        if not frontier:
            return None
        _, _, cost, world, path = heapq.heappop(frontier)
        for steps, way, after, outcome in _moves(world, path):
            if outcome == "win":
                return _unroll(way)
            total, guess = cost + steps, _steps_left(after)
            if not outcome and guess < FAR and total < cheapest.get(after.cells, FAR):
                cheapest[after.cells] = total
                heapq.heappush(frontier, (total + guess, next(order), total, after, way))
    return None


def _unroll(path: Path | None) -> list[str]:
    actions = []
    while path:
        path, action = path
        actions.append(action)
    return actions[::-1]


def _moves(world: World, path: Path | None) -> Iterator[tuple[int, Path, World, Outcome]]:
    """What can be done next: how many steps it takes, the path with them, and where it leads.

    A walk and a push, or a walk to a win; single steps where several are YOU or rules stir up more than what is pushed.
    """
    yous = world.find("you")
    calm = all(rule.predicate in CALM for rule in world.rules)
    if len(yous) != 1 or not calm or world.has(yous[0][1], "win") or world.has(yous[0][1], "lose"):
        for direction in DIRECTIONS if yous else ():
            yield 1, (path, direction), *step(world, direction)
        return
    [(start, you)] = yous
    cells = list(world.cells)
    cells[start] = tuple(thing for thing in cells[start] if thing != you)
    kinds = [_kind(world, stack) for stack in cells]
    reached, queue = {start}, deque([(start, 0, path)])
    while queue:
        spot, steps, path = queue.popleft()
        here = cells[spot]
        for direction in DIRECTIONS:
            there = spot + world.stride(direction)
            if kinds[there] == "push":
                cells[spot] = (*here, you)
                before = World(world.width, tuple(cells))
                cells[spot] = here
                after, outcome = step(before, direction)
                if outcome or after.cells != before.cells:
                    yield steps + 1, (path, direction), after, outcome
            elif kinds[there] == "win":
                yield steps + 1, (path, direction), world, "win"
            elif kinds[there] == "free" and there not in reached:
                reached.add(there)
                queue.append((there, steps + 1, (path, direction)))


def _kind(world: World, stack: tuple[Thing, ...]) -> str:
    """What a cell means to one who walks: push, blocked, win or free."""
    if not stack:
        return "free"
    if any(world.pushable(thing) for thing in stack):
        return "push"
    if any(world.solid(thing) for thing in stack):
        return "blocked"
    if any(world.has(thing, "win") for thing in stack):
        return "win"
    return "blocked" if any(world.has(thing, "lose") for thing in stack) else "free"


def _steps_left(world: World) -> int:
    """A guess at the steps still to go: the pushes that make some object WIN, and the walk to what is needed next."""
    yous = [spot for spot, _ in world.find("you")]
    if not yous:
        return FAR
    width, size = world.width, len(world.cells)
    walls = tuple(spot for spot, _ in world.find("stop"))
    walk = _walks_from(width, size, walls, yous[0])
    wins = world.find("win")
    if wins:
        return min(walk[spot] for spot, _ in wins)
    words = [(spot, stack[-1]) for spot, stack in enumerate(world.cells) if stack and stack[-1].kind != "object"]
    present = {thing.name for _, thing in world.objects}
    nouns = [spot for spot, thing in words if thing.kind == "noun" and thing.name in present]
    joints = [spot for spot, thing in words if thing.kind == "is"]
    properties = [spot for spot, thing in words if thing.name == "win"]
    return min(
        (
            PUSH_STEPS * _pushes_together(width, size, noun, joint, win) + walk[noun]
            for noun, joint, win in product(nouns, joints, properties)
        ),
        default=FAR,
    )


@lru_cache(maxsize=10_000)
def _walks_from(width: int, size: int, walls: tuple[int, ...], start: int) -> list[int]:
    """How many steps lead to each cell; BARRED_STEPS where walls stand between, whose rule must be broken first."""
    steps = [BARRED_STEPS] * size
    steps[start] = 0
    queue = deque([start])
    while queue:
        spot = queue.popleft()
        for there in (spot + 1, spot - 1, spot + width, spot - width):
            inside = 0 < there % width < width - 1 and width < there < size - width
            if inside and steps[there] == BARRED_STEPS and there not in walls:
                steps[there] = steps[spot] + 1
                queue.append(there)
    return steps


@lru_cache(maxsize=100_000)
def _pushes_together(width: int, size: int, noun: int, joint: int, predicate: int) -> int:
    """At least how many pushes bring three words in line, if nothing else were in the way."""
    nouns, joints, predicates = (_pushes_from(width, size, spot) for spot in (noun, joint, predicate))
    return min(
        nouns[spot - stride] + joints[spot] + predicates[spot + stride]
        for spot in range(width, size - width)
        if joints[spot] < FAR
        for stride in (1, width)
    )


@lru_cache(maxsize=10_000)
def _pushes_from(width: int, size: int, start: int) -> list[int]:
    """How many pushes bring a word to each cell. It takes room to stand behind it, so from an edge there is no way."""
    inside = [0 < spot % width < width - 1 and width < spot < size - width for spot in range(size)]
    pushes = [FAR] * size
    pushes[start] = 0
    queue = deque([start])
    while queue:
        spot = queue.popleft()
        for stride in (1, -1, width, -width):
            if inside[spot - stride] and inside[spot + stride] and pushes[spot + stride] == FAR:
                pushes[spot + stride] = pushes[spot] + 1
                queue.append(spot + stride)
    return pushes
