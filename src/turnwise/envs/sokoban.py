"""Sokoban in words and pictures: push every box onto a target, one move a turn.

A level is a pure function of (size, boxes, min_moves, max_moves, seed). It is made by playing backwards from a solved
room, so that it can be solved, and in how many moves is known. Knows nothing of models, memories or answer formats.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from turnwise.envs.board import WAYS, Cell, offset, paint
from turnwise.envs.phrases import Phrases, one_of

State = tuple[Cell, frozenset[Cell]]  # the player and the boxes

MOVES: dict[str, Cell] = {"Up": (-1, 0), "Down": (1, 0), "Left": (0, -1), "Right": (0, 1)}
SIZES = range(5, 11)
MAX_BOXES = 3  # with more, a search takes many seconds
ROOMS = 1000  # drawn before a range of moves counts as out of reach

INSTRUCTIONS = {
    "brief": """Actions: {actions}
# wall, _ floor, P you, X box, O target, V box on target, S you on target
Your goal: push every box onto a target.""",
    "full": """You play Sokoban: push every box onto a target.

You see the room from above, one line a row, one sign a cell:
- # is a wall, _ is empty floor, O is an empty target
- P is you, S is you on a target
- X is a box, V is a box on a target

Your actions:
- Up, Down, Left, Right: go one cell that way. A box in your way is pushed along, if the cell behind it is free.

Tips:
- You cannot pull. A box in a corner never leaves it, and one along a wall never leaves the wall.
- Only one box moves at a time. A wall or a second box behind it blocks the push, and the move is lost.
- To push a box left, go to its right side first, and so on.

Your goal: push every box onto a target.""",
}
MOVE, ONE_STEP = (
    r"(?:(?:move|go|walk|step|push)(?: (?:the )?box)? )?(?:to (?:the )?)?",
    r"(?: (?:1|one) (?:step|cell))?",
)
NEAR_MISSES = {action: rf"{MOVE}(?:{way}){ONE_STEP}" for action, way in WAYS.items()}

COLOURS = {  # of nested squares, each with its margin in sixteenths of a cell
    "#": [((90, 80, 75), 0), ((120, 108, 100), 1)],
    "_": [((225, 215, 195), 0)],
    "O": [((225, 215, 195), 0), ((200, 60, 50), 5)],
    "X": [((225, 215, 195), 0), ((110, 70, 30), 1), ((180, 120, 60), 2)],
    "V": [((225, 215, 195), 0), ((110, 70, 30), 1), ((180, 120, 60), 2), ((200, 60, 50), 5)],
    "P": [((225, 215, 195), 0), ((40, 110, 190), 3)],
    "S": [((225, 215, 195), 0), ((40, 110, 190), 3), ((200, 60, 50), 5)],
}


@dataclass(frozen=True)
class Level:
    """A room and where everything stands in it.

    `str` shows it, `Level.read` reads it again; a wall surrounds it:

        # # # # #
        # P X O #
        # # # # #
    """

    size: Cell  # rows and columns
    floor: frozenset[Cell]  # every cell that is not a wall
    targets: frozenset[Cell]
    boxes: frozenset[Cell]
    player: Cell

    @classmethod
    def read(cls, text: str) -> Level:
        rows = [line.split() for line in text.strip().splitlines()]
        cells = {(i, j): sign for i, row in enumerate(rows) for j, sign in enumerate(row)}

        def marked(signs: str) -> frozenset[Cell]:
            return frozenset(cell for cell, sign in cells.items() if sign in signs)

        (player,) = marked("PS")
        return cls((len(rows), len(rows[0])), marked("_OXVPS"), marked("OVS"), marked("XV"), player)

    def __str__(self) -> str:
        return "\n".join(" ".join(self._sign((i, j)) for j in range(self.size[1])) for i in range(self.size[0]))

    @property
    def solved(self) -> bool:
        return self.boxes == self.targets

    def after(self, action: str) -> Level:
        """The level after a move; the same if something blocks it."""
        player, boxes = moved(self.floor, (self.player, self.boxes), MOVES[action]) or (self.player, self.boxes)
        return replace(self, player=player, boxes=boxes)

    def _sign(self, cell: Cell) -> str:
        on_target = cell in self.targets
        if cell == self.player:
            return "S" if on_target else "P"
        if cell in self.boxes:
            return "V" if on_target else "X"
        return "O" if on_target else "_" if cell in self.floor else "#"


def moved(floor: frozenset[Cell], state: State, way: Cell) -> State | None:
    """The state after one move; None if it is blocked."""
    (i, j), boxes = state
    ahead, behind = (i + way[0], j + way[1]), (i + 2 * way[0], j + 2 * way[1])
    if ahead not in floor:
        return None
    if ahead not in boxes:
        return ahead, boxes
    return None if behind in boxes or behind not in floor else (ahead, boxes - {ahead} | {behind})


def solve(level: Level) -> list[str] | None:
    """A shortest solution, by breadth-first search; None if there is none."""
    start: State = (level.player, level.boxes)
    reached_by: dict[State, tuple[State, str] | None] = {start: None}
    queue = [start]  # grows while it is read
    for state in queue:
        if state[1] == level.targets:
            actions = []
            while step := reached_by[state]:
                state, action = step
                actions.append(action)
            return actions[::-1]
        for action, way in MOVES.items():
            following = moved(level.floor, state, way)
            if following and following not in reached_by:
                reached_by[following] = state, action
                queue.append(following)
    return None


def origins(floor: frozenset[Cell], state: State) -> Iterator[State]:
    """The states that one move turns into this one: the player came by walking, or by pushing the box in front."""
    (i, j), boxes = state
    for down, right in MOVES.values():
        came_from, pushed = (i - down, j - right), (i + down, j + right)
        if came_from in floor and came_from not in boxes:
            yield came_from, boxes
            if pushed in boxes:
                yield came_from, boxes - {pushed} | {(i, j)}


def layers(floor: frozenset[Cell], targets: frozenset[Cell], depth: int) -> list[list[State]]:
    """By number of moves, 0 to `depth`, the states whose shortest solution takes that many; fewer if there are none."""
    layer: list[State] = [(player, targets) for player in sorted(floor - targets)]
    found, reached = [layer], set(layer)
    while layer and len(found) <= depth:
        layer = list(dict.fromkeys(state for later in layer for state in origins(floor, later) if state not in reached))
        reached.update(layer)
        found.append(layer)
    return found


def draw_level(random: np.random.Generator, size: int, boxes: int, min_moves: int, max_moves: int) -> Level:
    """Draw a room and targets, then the number of moves evenly among those on offer, then one of its states."""
    for _ in range(ROOMS):
        floor = draw_floor(random, size)
        cells = sorted(floor)
        targets = frozenset(cells[k] for k in random.permutation(len(cells))[:boxes])
        offers = [states for states in layers(floor, targets, max_moves)[min_moves:] if states]
        if offers:
            states = offers[random.integers(len(offers))]
            player, placed = states[random.integers(len(states))]
            return Level((size, size), floor, targets, placed, player)
    raise ValueError(
        f"None of {ROOMS} rooms of size={size} with boxes={boxes} has a shortest solution of min_moves={min_moves} "
        f"to max_moves={max_moves} moves."
    )


def draw_floor(random: np.random.Generator, size: int) -> frozenset[Cell]:
    """Dig through the rock at random, until three quarters of the inside are floor."""
    ways = list(MOVES.values())
    inside = range(1, size - 1)
    i, j = (int(k) for k in random.integers(1, size - 1, 2))
    floor = {(i, j)}
    while len(floor) < 0.75 * len(inside) ** 2:
        down, right = ways[random.integers(4)]
        if i + down in inside and j + right in inside:
            i, j = i + down, j + right
            floor.add((i, j))
    return frozenset(floor)


class SokobanText(gymnasium.Env[dict[str, Any], str]):
    """Sokoban as text, with a new level at each reset whose shortest solution takes `min_moves` to `max_moves`.

    The reward is that of the classic: -0.1 a move, 1 for a box pushed onto a target, -1 for one pushed off, and 10 more
    when all are in place. Only that terminates an episode; `length` moves truncate it. Nothing says that a level has
    become impossible.
    """

    actions = tuple(MOVES)
    default_action = "Up"
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(
        self,
        size: int = 6,
        boxes: int = 1,
        min_moves: int = 1,
        max_moves: int = 5,
        length: int = 15,
        instructions: str = "brief",
    ):
        if size not in SIZES:
            raise ValueError(f"size is {size!r}, but must be a whole number from {SIZES[0]} to {SIZES[-1]}.")
        if boxes not in range(1, MAX_BOXES + 1):
            raise ValueError(f"boxes is {boxes!r}, but must be a whole number from 1 to {MAX_BOXES}.")
        if not 1 <= min_moves <= max_moves <= length:
            raise ValueError(
                f"min_moves, max_moves and length are {min_moves}, {max_moves} and {length}, "
                "but must be at least 1 and in this order."
            )
        self.size, self.boxes, self.min_moves, self.max_moves, self.length = size, boxes, min_moves, max_moves, length
        template = INSTRUCTIONS[one_of("instructions", instructions, tuple(INSTRUCTIONS))]
        self._instructions = template.format(actions=", ".join(self.actions))
        text = spaces.Text(max_length=4096, charset=string.printable)
        self.observation_space = spaces.Dict({"text": text, "instructions": text})
        self.action_space = Phrases(self.actions)
        self.level = self._draw(np.random.default_rng(0))  # a range of moves that no room offers is refused at once
        self._moves = 0
        self._plan: list[str] | None = []  # the expert's, for the level as it stands; None: lost, and for good

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, str], dict[str, Any]]:
        super().reset(seed=seed)
        self.level, self._moves, self._plan = self._draw(self.np_random), 0, []
        return self._observe(), self._info()

    def step(self, action: str) -> tuple[dict[str, str], float, bool, bool, dict[str, Any]]:
        before, self.level = self.level, self.level.after(one_of("action", action, self.actions))
        self._moves += 1
        if self._plan is not None:
            self._plan = self._plan[1:] if self._plan[:1] == [action] else []
        placed = len(self.level.boxes & self.level.targets) - len(before.boxes & before.targets)
        solved = self.level.solved
        reward = -0.1 + placed + 10.0 * solved
        return self._observe(), reward, solved, not solved and self._moves >= self.length, self._info()

    def render(self) -> np.ndarray:
        return paint([line.split() for line in str(self.level).splitlines()], COLOURS, 16)

    def translate(self, said: str) -> str | None:
        """The action that a near-miss means: "push the box left" is "Left"; None if it means none.

        `said` comes in lower case, with single spaces, without quotes, underscores and end punctuation.
        """
        return next((action for action, pattern in NEAR_MISSES.items() if re.fullmatch(pattern, said)), None)

    def expert(self) -> str:
        """The first move of a shortest solution; any move once there is none."""
        if self._plan == []:
            self._plan = solve(self.level)
        return self._plan[0] if self._plan else self.default_action

    def thought(self) -> str:
        """Where the nearest box off target is, and whereto from it the nearest empty target.

        "A box is 2 steps left. From it, a target is 1 step up."
        """
        boxes, targets = self.level.boxes - self.level.targets, self.level.targets - self.level.boxes
        if not boxes:
            return "Every box is on a target."
        box = min(sorted(boxes), key=lambda cell: _distance(self.level.player, cell))
        target = min(sorted(targets), key=lambda cell: _distance(box, cell))
        return f"A box is {offset(self.level.player, box)}. From it, a target is {offset(box, target)}."

    def _draw(self, random: np.random.Generator) -> Level:
        return draw_level(random, self.size, self.boxes, self.min_moves, self.max_moves)

    def _observe(self) -> dict[str, str]:
        return {"text": str(self.level), "instructions": self._instructions}

    def _info(self) -> dict[str, Any]:
        return {"success": self.level.solved, "steps_left": self.length - self._moves}


def _distance(start: Cell, end: Cell) -> int:
    return abs(start[0] - end[0]) + abs(start[1] - end[1])
