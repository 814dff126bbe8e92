"""Attention of a few tokens a row, in loops that numba compiles when they are first run and keeps for later processes.

Products of PyTorch read all rows as far as the longest of them goes, and leave the scores in memory in between. These
loops read each row once for two queries, as far as it goes. Sums are taken in the order in which they are written, so
that they are the same to the last bit however the loops are compiled.
"""

from functools import partial
from typing import Any, TypeAlias

import numba
import numpy as np
from numpy.typing import NDArray

from turnwise.compiled import compiled, fma, power_of_two

Numbers: TypeAlias = NDArray[np.float32]
Places: TypeAlias = NDArray[np.int64]

_AT_A_TIME = 4  # columns, so that what goes with them is fetched once for all; rows have a multiple of it
_RUN = 32  # columns that vectors take without a rest; to score some in vain is faster than one by one
_LEAST = np.float32(-126)  # exponent of normal numbers

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
        scores, others = np.empty(len(values), np.float32), np.empty(len(values), np.float32)
        spare = np.empty(size, np.float32)
        for token in range(starts[row], starts[row + 1]):
            for n in range(size):
                keys[n, positions[token]] = parts[token, heads + group, n]
                values[positions[token], n] = parts[token, heads + groups + group, n]
        queries = (starts[row + 1] - starts[row]) * repeat
        for query in range(0, queries, 2):
            other = min(query + 1, queries - 1)  # of an odd number the last one is paired with itself
            token, head = starts[row] + query // repeat, group * repeat + query % repeat
            later, next_head = starts[row] + other // repeat, group * repeat + other % repeat
            columns = positions[later] + 1
            runs = -(-columns // _RUN) * _RUN
            one, two = scores[:runs], others[:runs]
            _score(parts[token, head], parts[later, next_head], keys, scale, one, two)
            _weigh(one, positions[token] + 1)
            _weigh(two, columns)
            more = found[later, next_head] if other > query else spare
            _average(one, two, values, columns, found[token, head], more)


@_part
def _score(query: Numbers, other: Numbers, keys: Numbers, scale: np.float32, scores: Numbers, others: Numbers) -> None:
    """Products [c] of each of two queries [d], where d is even, and the first c keys of [d, C], times `scale`."""
    scores[:], others[:] = 0, 0
    for n in range(0, len(query), 2):
        a0, a1, b0, b1 = query[n] * scale, query[n + 1] * scale, other[n] * scale, other[n + 1] * scale
        k0, k1 = keys[n], keys[n + 1]
        for c in range(len(scores)):
            x0, x1 = k0[c], k1[c]
            scores[c] = fma(a1, x1, fma(a0, x0, scores[c]))
            others[c] = fma(b1, x1, fma(b0, x0, others[c]))


@_part
def _weigh(scores: Numbers, columns: int) -> None:
    """Make of scores powers of two that are one at most, with zeros from `columns` on."""
    top = scores[0]
    scores[columns:] = top
    for c in range(len(scores)):
        top = max(top, scores[c])
    for c in range(len(scores)):
        scores[c] = power_of_two(max(scores[c] - top, _LEAST))
    scores[columns:] = 0


@_part
def _average(weights: Numbers, others: Numbers, values: Numbers, columns: int, found: Numbers, more: Numbers) -> None:
    """The means [d] of values [C, d] by each of two weights [columns]."""
    total, rest = np.float32(0), np.float32(0)
    found[:], more[:] = 0, 0
    for c in range(0, columns, _AT_A_TIME):
        a0, a1, a2, a3 = weights[c], weights[c + 1], weights[c + 2], weights[c + 3]
        b0, b1, b2, b3 = others[c], others[c + 1], others[c + 2], others[c + 3]
        v0, v1, v2, v3 = values[c], values[c + 1], values[c + 2], values[c + 3]
        total, rest = total + ((a0 + a1) + (a2 + a3)), rest + ((b0 + b1) + (b2 + b3))
        for n in range(len(found)):
            x0, x1, x2, x3 = v0[n], v1[n], v2[n], v3[n]
            found[n] = fma(a3, x3, fma(a2, x2, fma(a1, x1, fma(a0, x0, found[n]))))
            more[n] = fma(b3, x3, fma(b2, x2, fma(b1, x1, fma(b0, x0, more[n]))))
    for n in range(len(found)):
        found[n] /= total
        more[n] /= rest
