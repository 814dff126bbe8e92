"""Attention of a few tokens a row, in loops that numba compiles when they are first run and keeps for later processes.

Products of PyTorch read all rows as far as the longest of them goes, and leave the scores in memory in between. These
loops read each row once, as far as it goes. Sums are taken in the order in which they are written, so that they are the
same to the last bit however the loops are compiled.
"""

from functools import partial
from typing import Any, TypeAlias

import numba
import numpy as np
from numpy.typing import NDArray

from turnwise.compiled import compiled

Numbers: TypeAlias = NDArray[np.float32]
Places: TypeAlias = NDArray[np.int64]

_AT_A_TIME = 4  # columns, so that what goes with them is fetched once for all; rows have a multiple of it
_RUN = 32  # columns that vectors take without a rest; to score some in vain is faster than one by one
_LEAST = np.float32(-126)  # exponent of normal numbers, as fp32 writes them:
_BIAS, _FRACTION = np.int32(127), np.int32(23)
_SERIES = tuple(np.float32(np.log(2) ** n / np.prod(np.arange(1, n + 1))) for n in range(7))  # of 2^x

_HOW: Any = {"fastmath": {"nnan", "nsz"}, "error_model": "numpy"}  # no other order of sums
_part: Any = numba.njit(**_HOW)


@partial(compiled, parallel=True, **_HOW)
def attend(
    parts: Numbers,
    positions: Places,
    starts: Places,
    rows: Places,
    all_keys: Numbers,
    all_values: Numbers,
    found: Numbers,
) -> None:
    """Keep the keys and values of N tokens of R rows, and find [N, heads, d] what their queries look at.

    Parts are queries, keys and values [N, heads + 2 x groups, d]; row r's begin at `starts[r]`, of [R + 1]. They
    stand at positions [N]. All keys are [rows, groups, d, C], all values [rows, groups, C, d]; r's are at `rows[r]`.
    """
    groups, size = all_keys.shape[1:3]
    heads = parts.shape[1] - 2 * groups
    repeat, scale = heads // groups, np.float32(1 / (np.log(2) * np.sqrt(size)))
    for place in numba.prange((len(starts) - 1) * groups):
        row, group = place // groups, place % groups
        keys, values = all_keys[rows[row], group], all_values[rows[row], group]
        scores, powers = np.empty(len(values), np.float32), np.empty(len(values), np.int32)
        for token in range(starts[row], starts[row + 1]):
            for n in range(size):
                keys[n, positions[token]] = parts[token, heads + group, n]
                values[positions[token], n] = parts[token, heads + groups + group, n]
        for token in range(starts[row], starts[row + 1]):
            columns = positions[token] + 1
            runs = -(-columns // _RUN) * _RUN
            for head in range(group * repeat, (group + 1) * repeat):
                _score(parts[token, head], keys, scale, scores[:runs])
                _weigh(scores[:runs], columns, powers)
                _average(scores, values, columns, found[token, head])


@_part
def _score(query: Numbers, keys: Numbers, scale: np.float32, scores: Numbers) -> None:
    """Products [c] of a query [d] and the first c keys of [d, C], times `scale`."""
    scores[:] = 0
    for n in range(len(query)):
        scaled = query[n] * scale
        for c in range(len(scores)):
            scores[c] += scaled * keys[n, c]


@_part
def _weigh(scores: Numbers, columns: int, powers: NDArray[np.int32]) -> None:
    """Make of scores powers of two that are one at most, with zeros from `columns` on; `powers` [C] is room for it."""
    top, exponents = scores[0], powers.view(np.float32)
    c0, c1, c2, c3, c4, c5, c6 = _SERIES
    scores[columns:] = top
    for c in range(len(scores)):
        top = max(top, scores[c])
    for c in range(len(scores)):
        score = max(scores[c] - top, _LEAST)
        whole = np.floor(score + np.float32(0.5))
        x = score - whole
        powers[c] = (np.int32(whole) + _BIAS) << _FRACTION
        scores[c] = c0 + x * (c1 + x * (c2 + x * (c3 + x * (c4 + x * (c5 + x * c6)))))
    for c in range(len(scores)):
        scores[c] *= exponents[c]
    scores[columns:] = 0


@_part
def _average(weights: Numbers, values: Numbers, columns: int, found: Numbers) -> None:
    """The mean [d] of values [C, d] by weights [columns]."""
    total = np.float32(0)
    found[:] = 0
    for c in range(0, columns, _AT_A_TIME):
        first, second, third, fourth = weights[c], weights[c + 1], weights[c + 2], weights[c + 3]
        total += (first + second) + (third + fourth)
        for n in range(len(found)):
            both = first * values[c, n] + second * values[c + 1, n]
            found[n] += both + (third * values[c + 2, n] + fourth * values[c + 3, n])
    for n in range(len(found)):
        found[n] /= total
