"""What games on a board of signs share: cells, their words and their picture."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Cell = tuple[int, int]  # row and column, from the top left

WAYS = {  # how each may be said, as patterns
    "Up": "up(?:wards?)?|north",
    "Down": "down(?:wards?)?|south",
    "Left": "left|west",
    "Right": "right|east",
}


def paint(rows: Sequence[Sequence[str]], colours: Mapping[str, Any], pixels: int) -> np.ndarray:
    """An RGB image of a board: each sign becomes nested squares of `pixels` at most; margins are in sixteenths."""
    image = np.zeros((len(rows) * pixels, len(rows[0]) * pixels, 3), np.uint8)
    for i, row in enumerate(rows):
        for j, sign in enumerate(row):
            cell = image[i * pixels : (i + 1) * pixels, j * pixels : (j + 1) * pixels]
            for colour, margin in colours[sign]:
                inset = margin * pixels // 16
                cell[inset : pixels - inset, inset : pixels - inset] = colour
    return image


def offset(start: Cell, end: Cell) -> str:
    """`offset((0, 0), (1, -2))` is "1 step down and 2 steps left"."""
    down, right = end[0] - start[0], end[1] - start[1]
    parts = [(abs(down), "up" if down < 0 else "down"), (abs(right), "left" if right < 0 else "right")]
    return " and ".join(f"{k} step{'s' * (k > 1)} {way}" for k, way in parts if k)
