"""Draws a world of Baba Is You as an image: a tile a cell, words as letters on plates, objects as small shapes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from turnwise.envs.baba_rules import Thing, World

TILE = 32  # pixels

FLOOR, PLATE, FRAME = (18, 20, 30), (52, 56, 72), (96, 100, 116)
PAINT = {"red": (226, 74, 66), "blue": (86, 136, 240), "green": (92, 186, 96)}
OBJECTS = {"baba": (245, 240, 235), "wall": (128, 112, 100)}  # those without a colour of their own
WORDS = {"noun": (245, 240, 235), "is": (180, 184, 196), "property": (250, 205, 90), "colour": (250, 205, 90)}

SHAPES = {  # eight rows of eight pixels
    "baba": "24247e5a7efe7e42",
    "wall": "fbfbfb00dfdfdf00",
    "ball": "3c7effffffff7e3c",
    "key": "0070888f8d700000",
    "door": "7e7e7e7e7a7e7e7e",
}
LETTERS = {  # five rows of three pixels, a digit a row
    **{"a": "25755", "b": "65656", "d": "65556", "e": "74647", "g": "34553", "h": "55755", "i": "72227"},
    **{"k": "55655", "l": "44447", "m": "57755", "n": "65555", "o": "25552", "p": "65644", "r": "65655"},
    **{"s": "34216", "t": "72222", "u": "55557", "v": "55552", "w": "55775", "y": "55222"},
}

Image = NDArray[np.uint8]  # [height, width, 3]


def draw(world: World) -> Image:
    rows = len(world.cells) // world.width
    image = np.full((rows * TILE, world.width * TILE, 3), FLOOR, np.uint8)
    for spot, stack in enumerate(world.cells):
        top, left = (TILE * place for place in divmod(spot, world.width))
        for thing in stack:
            _paint(image[top : top + TILE, left : left + TILE], thing)
    return image


def _paint(tile: Image, thing: Thing) -> None:
    if thing.kind == "border":
        tile[:] = FRAME
    elif thing.kind == "object":
        shape = _bits(SHAPES[thing.name], base=16, digits=2)
        tile[_enlarged(shape, TILE // 8)] = PAINT.get(thing.colour) or OBJECTS.get(thing.name, OBJECTS["baba"])
    else:
        tile[1:-1, 1:-1] = PLATE
        letters = [np.pad(_bits(LETTERS[letter], base=8, digits=1), ((0, 0), (0, 1))) for letter in thing.name]
        shape = np.hstack(letters)[:, :-1]
        shape = _enlarged(shape, min(2, (TILE - 2) // shape.shape[1]))
        top, left = ((TILE - length) // 2 for length in shape.shape)
        tile[top : top + shape.shape[0], left : left + shape.shape[1]][shape] = WORDS[thing.kind]


def _bits(code: str, base: int, digits: int) -> NDArray[np.bool_]:
    """A bitmap from its rows: so many digits each."""
    rows = [int(code[start : start + digits], base) for start in range(0, len(code), digits)]
    width = 8 if base == 16 else 3
    return np.array([[row >> shift & 1 for shift in reversed(range(width))] for row in rows], bool)


def _enlarged(shape: NDArray[np.bool_], times: int) -> NDArray[np.bool_]:
    return shape.repeat(times, axis=0).repeat(times, axis=1)
