"""FrozenLake in words and pictures: cross the ice to the goal, past the holes, one move a turn.

A lake is a pure function of (size, holes, length, seed), and always has a way across. On slippery ice, where a move
ends is drawn from the same seed. Knows nothing of models, memories or answer formats.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from turnwise.envs.board import WAYS, Cell, offset, paint
from turnwise.envs.phrases import Phrases, one_of

MOVES: dict[str, Cell] = {"Left": (0, -1), "Down": (1, 0), "Right": (0, 1), "Up": (-1, 0)}
SIZES = range(2, 17)

SLIP = """ The ice is slippery: with probability {slip:g} you slide to one side instead of going where you want."""
INSTRUCTIONS = {
    "brief": """Actions: {actions}
_ ice, O hole, G goal, P you
Your goal: reach G and never step into a hole.{slippery}""",
    "full": """You cross a frozen lake: reach the goal and never step into a hole.

You see the lake from above, one line a row, one sign a cell:
- P is you, G is the goal
- _ is ice, which carries you; O is a hole, which ends everything

Your actions:
- Left, Down, Right, Up: go one cell that way. At the border of the lake you stay where you are.

Tips:
- Only the four neighbouring cells count, not the diagonal ones.
- Look for a way of _ from P to G, and walk around the holes.

Your goal: reach G and never step into a hole.{slippery}""",
}
MOVE, ONE_STEP = r"(?:(?:move|go|walk|step|slide) )?(?:to (?:the )?)?", r"(?: (?:1|one) (?:step|cell))?"
NEAR_MISSES = {action: rf"{MOVE}(?:{WAYS[action]}){ONE_STEP}" for action in MOVES}

ICE = [((160, 195, 215), 0), ((205, 230, 245), 1)]  # nested squares, each with its margin in sixteenths of a cell
HOLE, GOAL = ((25, 55, 95), 2), ((60, 160, 80), 4)
COLOURS = {
    "_": ICE,
    "O": [*ICE, HOLE],
    "G": [*ICE, GOAL],
    "P": [*ICE, ((200, 60, 50), 4)],
    "X": [*ICE, HOLE, ((200, 60, 50), 6)],
    "V": [*ICE, GOAL, ((200, 60, 50), 6)],
}


@dataclass(frozen=True)
class Lake:
    """The ice and where the player stands on it.

    `str` shows it, `Lake.read` reads it again:

        P _ O
        _ _ G
    """

    size: Cell  # rows and columns
    holes: frozenset[Cell]
    goal: Cell
    player: Cell

    @classmethod
    def read(cls, text: str) -> Lake:
        rows = [line.split() for line in text.strip().splitlines()]
        cells = {(i, j): sign for i, row in enumerate(rows) for j, sign in enumerate(row)}

        def marked(signs: str) -> frozenset[Cell]:
            return frozenset(cell for cell, sign in cells.items() if sign in signs)

        (goal,), (player,) = marked("GV"), marked("PXV")
        return cls((len(rows), len(rows[0])), marked("OX"), goal, player)

    def __str__(self) -> str:
        return "\n".join(" ".join(self._sign((i, j)) for j in range(self.size[1])) for i in range(self.size[0]))

    @property
    def crossed(self) -> bool:
        return self.player == self.goal

    @property
    def drowned(self) -> bool:
        return self.player in self.holes

    def after(self, action: str) -> Lake:
        """The lake after a move that goes where it should; a move across the border stays in place."""
        i, j = (place + change for place, change in zip(self.player, MOVES[action], strict=True))
        inside = i in range(self.size[0]) and j in range(self.size[1])
        return replace(self, player=(i, j)) if inside else self

    def _sign(self, cell: Cell) -> str:
        if cell == self.player:
            return "X" if self.drowned else "V" if self.crossed else "P"
        return "O" if cell in self.holes else "G" if cell == self.goal else "_"


def draw_lake(random: np.random.Generator, size: int, holes: float, length: int) -> Lake:
    """Draw holes, start and goal until there is a way of at most `length` moves."""
    while True:
        cells = [(i, j) for i in range(size) for j in range(size)]
        start, goal = (cells[k] for k in random.permutation(len(cells))[:2])
        thin = random.random(len(cells)) < holes
        lake = Lake(
            (size, size), frozenset(cell for cell, melts in zip(cells, thin, strict=True) if melts), goal, start
        )
        lake = replace(lake, holes=lake.holes - {start, goal})
        if distance(lake) <= length:
            return lake


def distance(lake: Lake) -> float:
    """How many moves a shortest way to the goal has; infinite if there is none."""
    edge, reached, moves = {lake.player: lake}, {lake.player}, 0
    while edge:
        if lake.goal in edge:
            return moves
        edge = {after.player: after for here in edge.values() for after in map(here.after, MOVES) if not after.drowned}
        edge = {player: here for player, here in edge.items() if player not in reached}
        reached.update(edge)
        moves += 1
    return float("inf")


def slides(action: str, slip: float) -> list[tuple[str, float]]:
    """Whereto a move may go, each with its probability: as meant, or to one of the two sides."""
    sides = ("Up", "Down") if action in ("Left", "Right") else ("Left", "Right")
    return [(action, 1 - slip), *((side, slip / 2) for side in sides)]


def chances(lake: Lake, slip: float, length: int) -> np.ndarray:
    """[k, action, i, j]: the chance to reach the goal within k moves if this one comes first, by value iteration.

    With no moves left, it is 1 at the goal and 0 elsewhere.
    """
    safe = np.ones(lake.size, bool)
    for hole in lake.holes:
        safe[hole] = False
    best = np.zeros(lake.size)
    best[lake.goal] = 1
    table = [np.broadcast_to(best, (len(MOVES), *lake.size))]
    for _ in range(length):
        beyond = np.pad(best, 1, mode="edge")  # a move across the border stays in place
        ahead = {
            way: beyond[1 + down : 1 + down + lake.size[0], 1 + right : 1 + right + lake.size[1]]
            for way, (down, right) in MOVES.items()
        }
        table.append(np.stack([sum(chance * ahead[way] for way, chance in slides(a, slip)) for a in MOVES]))
        best = np.where(safe, table[-1].max(0), 0)
        best[lake.goal] = 1
    return np.stack(table)


class FrozenLakeText(gymnasium.Env[dict[str, Any], str]):
    """FrozenLake as text, with a new lake at each reset that can be crossed in `length` moves.

    The reward is 1 at the goal and 0 otherwise. The goal and a hole terminate an episode; `length` moves truncate it.
    """

    actions = tuple(MOVES)
    default_action = "Left"
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(
        self, size: int = 4, holes: float = 0.2, slip: float = 0.0, length: int = 25, instructions: str = "brief"
    ):
        if size not in SIZES:
            raise ValueError(f"size is {size!r}, but must be a whole number from {SIZES[0]} to {SIZES[-1]}.")
        if not 0 <= holes <= 0.5:
            raise ValueError(f"holes is {holes!r}, but must be a share of the cells from 0 to 0.5.")
        if not 0 <= slip <= 1:
            raise ValueError(f"slip is {slip!r}, but must be a probability from 0 to 1.")
        if not isinstance(length, int) or length < 1:
            raise ValueError(f"length is {length!r}, but must be a whole number of moves, at least 1.")
        self.size, self.holes, self.slip, self.length = size, holes, slip, length
        template = INSTRUCTIONS[one_of("instructions", instructions, tuple(INSTRUCTIONS))]
        slippery = SLIP.format(slip=slip) if slip else ""
        self._instructions = template.format(actions=", ".join(self.actions), slippery=slippery)
        text = spaces.Text(max_length=4096, charset=string.printable)
        self.observation_space = spaces.Dict({"text": text, "instructions": text})
        self.action_space = Phrases(self.actions)
        self.lake = draw_lake(np.random.default_rng(0), size, holes, length)
        self._moves = 0
        self._chances: np.ndarray | None = None  # of this lake, once the expert was asked

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, str], dict[str, Any]]:
        super().reset(seed=seed)
        self.lake = draw_lake(self.np_random, self.size, self.holes, self.length)
        self._moves, self._chances = 0, None
        return self._observe(), self._info()

    def step(self, action: str) -> tuple[dict[str, str], float, bool, bool, dict[str, Any]]:
        ways, weights = zip(*slides(one_of("action", action, self.actions), self.slip), strict=True)
        self.lake = self.lake.after(ways[self.np_random.choice(len(ways), p=weights)])
        self._moves += 1
        ended = self.lake.crossed or self.lake.drowned
        truncated = not ended and self._moves >= self.length
        return self._observe(), float(self.lake.crossed), ended, truncated, self._info()

    def render(self) -> np.ndarray:
        return paint([line.split() for line in str(self.lake).splitlines()], COLOURS, 64)

    def translate(self, said: str) -> str | None:
        """The action that a near-miss means: "go to the right" is "Right"; None if it means none.

        `said` comes in lower case, with single spaces, without quotes, underscores and end punctuation.
        """
        return next((action for action, pattern in NEAR_MISSES.items() if re.fullmatch(pattern, said)), None)

    def expert(self) -> str:
        """The move with the best chance to reach the goal in time; of equal ones, that which is likely there sooner."""
        if self._chances is None:
            self._chances = chances(self.lake, self.slip, self.length)
        within = self._chances[: self.length - self._moves + 1, :, *self.lake.player].round(9)
        return max(self.actions, key=lambda action: (within[-1, k := self.actions.index(action)], within[:, k].sum()))

    def thought(self) -> str:
        """Where the goal is, and on which sides there is a hole.

        "The goal is 2 steps down and 1 step right. Holes beside me: left."
        """
        if self.lake.crossed or self.lake.drowned:
            return f"I am {'at the goal' if self.lake.crossed else 'in a hole'}."
        holes = [action.lower() for action in self.actions if self.lake.after(action).drowned]
        return f"The goal is {offset(self.lake.player, self.lake.goal)}. Holes beside me: {', '.join(holes) or 'none'}."

    def _observe(self) -> dict[str, str]:
        return {"text": str(self.lake), "instructions": self._instructions}

    def _info(self) -> dict[str, Any]:
        return {"success": self.lake.crossed, "steps_left": self.length - self._moves}
