"""Draws the worlds of Crafter by its formulas, all cells at once."""

import itertools

import numpy as np

EDGE = "edge of the world"  # the kind of every cell beyond


def draw_world(random: np.random.RandomState, width: int, height: int) -> tuple[np.ndarray, np.ndarray]:
    """The materials and the creatures ("" for none) of a world of Crafter, as arrays of names, indexed [x, y]."""
    x, y = np.mgrid[:width, :height].astype(float)
    away = np.hypot(x - width // 2, y - height // 2)
    table = random.permutation(256)

    def layer(z: int, size: float, x: np.ndarray = x, y: np.ndarray = y) -> np.ndarray:
        return noise(table, x / size, y / size, z)

    def happens(chance: float) -> np.ndarray:
        return random.uniform(size=away.shape) < chance

    start = 1 / (1 + np.exp(away - 4 - 2 * layer(8, 3)))
    water = layer(3, 15) + 0.15 * layer(3, 5) + 0.1 - 2 * start
    mountain = (layer(0, 15) + 0.3 * layer(0, 5)) / 1.3 - 4 * start - 0.3 * water
    meadow, rock, deep = start > 0.5, mountain > 0.15, mountain > 0.3
    cave = (layer(6, 7) > 0.15) & deep
    tunnel = (layer(7, 3, 2 * x, y / 5) > 0.4) | (layer(7, 3, x / 5, 2 * y) > 0.4)
    cases = [  # the first that holds
        ("grass", meadow),
        ("path", rock & (cave | tunnel)),
        ("coal", rock & (layer(1, 8) > 0) & happens(0.15)),
        ("iron", rock & (layer(2, 6) > 0.4) & happens(0.25)),
        ("diamond", rock & (mountain > 0.18) & happens(0.006)),
        ("lava", rock & deep & (layer(6, 5) > 0.35)),
        ("stone", rock),
        ("sand", (water > 0.25) & (water <= 0.35) & (layer(4, 9) > -0.2)),
        ("water", water > 0.3),
        ("tree", (layer(5, 7) > 0) & happens(0.2)),
    ]
    materials = np.select([case for _, case in cases], [name for name, _ in cases], "grass")
    walkable = np.isin(materials, ["grass", "sand", "path"])
    creatures = np.select(
        [
            (materials == "grass") & (away > 3) & happens(0.015),
            walkable & (away > 10) & happens(0.007),
            rock & ~meadow & ~cave & tunnel & happens(0.05),
        ],
        ["cow", "zombie", "skeleton"],
        "",
    )
    return materials, creatures


GRADIENTS = np.array(
    [
        (east * a, south * b, up * c)
        for up in (1, -1)
        for south in (1, -1)
        for east in (-1, 1)
        for a, b, c in ((11, 4, 4), (4, 11, 4), (4, 4, 11))
    ]
)
# The corners of the lattice that reach some point of the cell at (0, 0, 0).
NEAR = ((0, 0, 0), (0, 0, 1), (0, 1, 1), (1, 1, 1), (-1, 0, 1), (-1, 1, 1), (0, 0, 2), (0, 1, 2))
CORNERS = sorted({corner for near in NEAR for corner in itertools.permutations(near)})


def noise(table: np.ndarray, x: np.ndarray, y: np.ndarray, z: float) -> np.ndarray:
    """OpenSimplex noise in three dimensions: smooth, in -1 to 1, and fixed by `table`, a permutation of 0 to 255.

    Each corner of a skewed lattice pulls at the points nearer than the root of 2, along a gradient of its own.
    """
    point = np.stack(np.broadcast_arrays(x, y, float(z)))
    base = np.floor(point - point.sum(0) / 6).astype(int)
    total = np.zeros(point.shape[1:])
    for corner in CORNERS:
        a, b, c = place = base + np.reshape(corner, (3, *(1,) * (point.ndim - 1)))
        offset = point - place - place.sum(0) / 3
        strength = np.maximum(2 - (offset**2).sum(0), 0) ** 4
        gradient = GRADIENTS[table[(table[(table[a & 255] + b) & 255] + c) & 255] % len(GRADIENTS)]
        total += strength * (np.moveaxis(gradient, -1, 0) * offset).sum(0)
    return total / 103  # the largest sum there is, about
