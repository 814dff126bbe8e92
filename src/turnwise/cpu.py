"""What lies between the products of a layer, in loops that numba compiles for a processor, as gpu.py for a GPU.

Each number is read once, computed with in fp32, and written once. Loops see bf16 as its bits. Sums are taken in the
order in which they are written, so that they are the same to the last bit however the loops are compiled.

Shapes: N vectors of D numbers, I units of a perceptron; b rows of C places, heads of d numbers.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numba
import numpy as np
import torch
from numba.core import types
from numba.extending import overload
from numpy.typing import NDArray
from torch import Tensor

from turnwise.compiled import compiled, of_bits, power_of_two, to_bits
from turnwise.threads import has_threads, use_threads

Numbers: TypeAlias = NDArray[np.float32]
Either: TypeAlias = NDArray[Any]  # fp32, or the bits of bf16
Places: TypeAlias = NDArray[np.int64]

_ROWS = 64  # vectors at a time, by one thread
_SIDE_BY_SIDE = 64  # sums, of which a vector's is made: four become one, three times
_LEAST, _MOST = np.float32(-126), np.float32(127)  # exponents of normal numbers
_LOG2_E = np.float32(1 / np.log(2))
_ZERO, _ONE = np.float32(0), np.float32(1)
_NAN, _HALF, _KEPT = np.uint32(0x7FC00000), np.uint32(0x7FFF), np.uint32(16)  # of fp32 bits bf16 keeps the first 16

_part: Any = numba.njit(error_model="numpy")
_loops = partial(compiled, parallel=has_threads(), nogil=True, error_model="numpy")


def opened(given: Tensor) -> Tensor:
    """SwiGLU: [N, I] of gates and ups [N, 2 I]."""
    found = given.new_empty((len(given), given.shape[1] // 2))
    use_threads()
    _opened(_array(given), _array(found))
    return found


def opened_slope(given: Tensor, slope: Tensor) -> Tensor:
    """Of gates and ups [N, 2 I], by that of what SwiGLU makes of them [N, I]."""
    found = given.new_empty(given.shape)
    use_threads()
    _opened_slope(_array(given), _array(slope), _array(found))
    return found


def normed(
    given: Tensor, added: Tensor | None, weight: Tensor, floor: float, kind: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """The sum [..., D], or what is given; its RMS norm over the last axis, in `kind`; the norm's scale [..., 1]."""
    given = given.contiguous()
    total = given if added is None else given.new_empty(given.shape)
    found, scale = given.new_empty(given.shape, dtype=kind), given.new_empty((*given.shape[:-1], 1))
    read = _vectors(given), _vectors(added), _array(weight), np.float32(floor)
    use_threads()
    _normed(*read, _vectors(total), _vectors(found), _array(scale).reshape(-1))
    return total, found, scale


def norm_slope(
    slope: Tensor,
    total: Tensor,
    weight: Tensor,
    scale: Tensor,
    beside: Tensor | None,
    kind: torch.dtype | None,
    learns: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Of the sum [..., D], in fp32, by that of its norm and by another of itself, if there is one; in `kind` too.

    And that of the weight [D], if it learns.
    """
    found = total.new_empty(total.shape)
    again = None if kind is None or kind == found.dtype else found.new_empty(found.shape, dtype=kind)
    of_weight = total.new_zeros((-(-scale.numel() // _ROWS), len(weight))) if learns else None
    read = _vectors(slope), _vectors(total), _array(weight), _array(scale).reshape(-1), _vectors(beside)
    use_threads()
    _norm_slope(*read, _vectors(found), _vectors(again), _vectors(of_weight))
    return found, found if kind == found.dtype else again, None if of_weight is None else of_weight.sum(0)


@dataclass(frozen=True)
class Side:
    """Which vectors of [N, H, d] lie side by side: of some heads, those of the places `at` [b, C]; -1 stands for zeros.

    With angles [., d] of all places, cosines and then sines, each number of a vector's first half is turned with one of
    the second. With `words` [.] places are of words, which have the vectors.
    """

    heads: slice
    at: Tensor
    angles: Tensor | None = None
    words: Tensor | None = None

    @property
    def arrays(self) -> tuple[int, Places, Numbers | None, Places | None]:
        angles, words = (None if x is None else x.numpy() for x in (self.angles, self.words))
        return self.heads.start, self.at.numpy(), angles, words


def laid(given: Tensor, side: Side, *kinds: torch.dtype) -> list[Tensor]:
    """Vectors side by side [b, h, C, d], turned in fp32; in each of one or two kinds."""
    shape = len(side.at), side.heads.stop - side.heads.start, side.at.shape[1], given.shape[2]
    # The finer comes first: of it the other is made.
    found = {kind: given.new_empty(shape, dtype=kind) for kind in sorted(kinds, key=lambda kind: -kind.itemsize)}
    one, *other = map(_array, found.values())
    use_threads()
    _laid(_array(given), *side.arrays, one, other[0] if other else None)
    return [found[kind] for kind in kinds]


def brought_back(rows: Tensor, side: Side, sums: Tensor) -> None:
    """Add vectors that lie side by side to those of `sums` [N, H, d] they are of, turned back: the slope of `laid`."""
    rows = rows.view(len(side.at), side.heads.stop - side.heads.start, -1, sums.shape[2])
    use_threads()
    _brought_back(_array(rows), *side.arrays, _array(sums))


def _array(x: Tensor) -> Either:
    x = x.detach().contiguous()
    return x.view(torch.uint16).numpy() if x.dtype == torch.bfloat16 else x.numpy()


def _vectors(x: Tensor | None) -> Either | None:
    """[N, D]."""
    return None if x is None else _array(x).reshape(-1, x.shape[-1])


@_loops
def _opened(given: Either, found: Either) -> None:
    for n in numba.prange(len(found)):
        both, row = given[n], found[n]
        size = len(row)
        for i in range(size):
            gate = _load(both[i])
            _store(row, i, gate * _sigmoid(gate) * _load(both[size + i]))


@_loops
def _opened_slope(given: Either, slope: Either, found: Either) -> None:
    for n in numba.prange(len(slope)):
        both, own, row = given[n], slope[n], found[n]
        size = len(own)
        for i in range(size):
            gate, up, x = _load(both[i]), _load(both[size + i]), _load(own[i])
            share = _sigmoid(gate)
            _store(row, i, x * up * share * (_ONE + gate * (_ONE - share)))
            _store(row, size + i, x * gate * share)


@_loops
def _normed(
    given: Numbers, added: Either | None, weight: Numbers, floor: float, total: Numbers, found: Either, scale: Numbers
) -> None:
    size = len(weight)
    for block in numba.prange(-(-len(found) // _ROWS)):
        sums = np.empty(_SIDE_BY_SIDE, np.float32)
        for n in range(block * _ROWS, min(len(found), (block + 1) * _ROWS)):
            row, of_unit_size = total[n], found[n]
            if added is not None:
                for i in range(size):
                    row[i] = given[n, i] + _load(added[n, i])
            factor = _ONE / np.sqrt(_product(row, row, sums) / np.float32(size) + floor)
            for i in range(size):
                _store(of_unit_size, i, row[i] * factor * weight[i])
            scale[n] = factor


@_loops
def _norm_slope(
    slope: Either,
    total: Numbers,
    weight: Numbers,
    scale: Numbers,
    beside: Numbers | None,
    found: Numbers,
    again: Either | None,
    of_weight: Numbers | None,
) -> None:
    size = len(weight)
    for block in numba.prange(-(-len(found) // _ROWS)):
        sums, own = np.empty(_SIDE_BY_SIDE, np.float32), np.empty(size, np.float32)
        for n in range(block * _ROWS, min(len(found), (block + 1) * _ROWS)):
            row, of_row, factor = total[n], found[n], scale[n]
            for i in range(size):
                own[i] = _load(slope[n, i]) * weight[i]
            along = _product(own, row, sums) * factor * factor * factor / np.float32(size)
            for i in range(size):
                of_row[i] = own[i] * factor - row[i] * along
            if beside is not None:
                for i in range(size):
                    of_row[i] += beside[n, i]
            if again is not None:
                for i in range(size):
                    _store(again[n], i, of_row[i])
            if of_weight is not None:
                for i in range(size):
                    of_weight[block, i] += _load(slope[n, i]) * row[i] * factor


@_loops
def _laid(
    given: Either,
    first: int,
    at: Places,
    angles: Numbers | None,
    words: Places | None,
    found: Either,
    again: Either | None,
) -> None:
    rows, heads, columns, size = found.shape
    half = size // 2
    for n in numba.prange(rows * heads):
        b, h = n // heads, n % heads
        for c in range(columns):
            place, row = at[b, c], found[b, h, c]
            if place < 0:
                for i in range(size):
                    _store(row, i, _ZERO)
            else:
                vector = given[place if words is None else words[place], first + h]
                if angles is None:
                    for i in range(size):
                        _store(row, i, _load(vector[i]))
                else:
                    angle = angles[place]
                    for i in range(half):
                        one, other, cosine, sine = _load(vector[i]), _load(vector[half + i]), angle[i], angle[half + i]
                        _store(row, i, one * cosine - other * sine)
                        _store(row, half + i, one * sine + other * cosine)
            if again is not None:
                more = again[b, h, c]
                for i in range(size):
                    _store(more, i, _load(row[i]))


@_loops
def _brought_back(
    rows: Either, first: int, at: Places, angles: Numbers | None, words: Places | None, sums: Either
) -> None:
    heads, size = rows.shape[1], rows.shape[3]
    half = size // 2
    for h in numba.prange(heads):  # rows share places, and no heads
        for b in range(len(at)):
            for c in range(at.shape[1]):
                place = at[b, c]
                if place < 0:
                    continue
                vector, total = rows[b, h, c], sums[place if words is None else words[place], first + h]
                if angles is None:
                    for i in range(size):
                        _store(total, i, _load(total[i]) + _load(vector[i]))
                else:
                    angle = angles[place]
                    for i in range(half):
                        one, other, cosine, sine = _load(vector[i]), _load(vector[half + i]), angle[i], angle[half + i]
                        _store(total, i, _load(total[i]) + (one * cosine + other * sine))
                        _store(total, half + i, _load(total[half + i]) + (other * cosine - one * sine))


@_part
def _product(one: Numbers, other: Numbers, sums: Numbers) -> Any:
    """Of two vectors [D]; `sums` is room for as many as are taken side by side."""
    whole = len(one) // _SIDE_BY_SIDE * _SIDE_BY_SIDE
    sums[:] = 0
    for start in range(0, whole, _SIDE_BY_SIDE):
        for i in range(_SIDE_BY_SIDE):
            sums[i] += one[start + i] * other[start + i]
    for i in range(16):
        sums[i] = (sums[i] + sums[i + 16]) + (sums[i + 32] + sums[i + 48])
    for i in range(4):
        sums[i] = (sums[i] + sums[i + 4]) + (sums[i + 8] + sums[i + 12])
    total = (sums[0] + sums[1]) + (sums[2] + sums[3])
    for i in range(whole, len(one)):
        total += one[i] * other[i]
    return total


@_part
def _sigmoid(x: Any) -> Any:
    power = -x * _LOG2_E
    power = power if power > _LEAST else _LEAST
    power = power if power < _MOST else _MOST
    return _ONE / (_ONE + power_of_two(power))


def _load(x: Any) -> Any:
    """A number of `Either`, in fp32."""


def _store(row: Any, at: Any, x: Any) -> Any:
    """Put a number in fp32 into `Either`: as it is, or rounded to the nearest bf16, and of two to the even one."""


@overload(_load)
def _load_either(x):  # pyright: ignore[reportUnusedFunction]
    return (lambda x: of_bits(np.uint32(x) << _KEPT)) if x == types.uint16 else lambda x: x


@overload(_store)
def _store_either(row, at, x):  # pyright: ignore[reportUnusedFunction]
    def rounded(row, at, x):
        bits = to_bits(x)
        nearest = bits + _HALF + ((bits >> _KEPT) & np.uint32(1))
        row[at] = np.uint16((nearest if x == x else _NAN) >> _KEPT)

    def exact(row, at, x):
        row[at] = x

    return rounded if row.dtype == types.uint16 else exact
