"""What lies between the matrix products of a layer, in loops that numba compiles for a processor, as gpu.py for a GPU.

Each number is read once, computed with in fp32, and written once. Loops see bf16 as its bits. Sums are taken in the
order in which they are written, so that they are the same to the last bit however the loops are compiled.

Shapes: N vectors of D numbers, I units of an MLP; b rows of C columns, heads of d numbers.
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
Indices: TypeAlias = NDArray[np.int64]

_ROWS = 64  # vectors at a time, by one thread
_SIDE_BY_SIDE = 64  # sums, of which a vector's is made: four become one, three times
_LEAST, _MOST = np.float32(-126), np.float32(127)  # exponents of normal numbers
_LOG2_E = np.float32(1 / np.log(2))
_ZERO, _ONE = np.float32(0), np.float32(1)
_NAN, _HALF, _KEPT = np.uint32(0x7FC00000), np.uint32(0x7FFF), np.uint32(16)  # of fp32 bits bf16 keeps the first 16

_part: Any = numba.njit(error_model="numpy")
_loops = partial(compiled, parallel=has_threads(), nogil=True, error_model="numpy")


def swiglu(given: Tensor) -> Tensor:
    """SwiGLU: [N, I] of gates and ups [N, 2 I]."""
    found = given.new_empty((len(given), given.shape[1] // 2))
    use_threads()
    _swiglu(_array(given), _array(found))
    return found


def swiglu_backward(given: Tensor, grad: Tensor) -> Tensor:
    """The gradient of gates and ups [N, 2 I], given that of what SwiGLU makes of them [N, I]."""
    found = given.new_empty(given.shape)
    use_threads()
    _swiglu_backward(_array(given), _array(grad), _array(found))
    return found


def rms_norm(
    given: Tensor, added: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """The sum [..., D], or what is given; its RMS norm over the last axis, in `dtype`; the norm's scale [..., 1]."""
    given = given.contiguous()
    total = given if added is None else given.new_empty(given.shape)
    found, scale = given.new_empty(given.shape, dtype=dtype), given.new_empty((*given.shape[:-1], 1))
    read = _vectors(given), _vectors(added), _array(weight), np.float32(eps)
    use_threads()
    _rms_norm(*read, _vectors(total), _vectors(found), _array(scale).reshape(-1))
    return total, found, scale


def rms_norm_backward(
    grad: Tensor,
    total: Tensor,
    weight: Tensor,
    scale: Tensor,
    total_grad: Tensor | None,
    dtype: torch.dtype | None,
    weight_learns: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The gradient of the sum [..., D] in fp32, the same in `dtype`, and that of the weight [D], if it learns.

    Given are the gradient of the norm and, if the sum is used elsewhere, what comes from there.
    """
    found = total.new_empty(total.shape)
    rounded = None if dtype is None or dtype == found.dtype else found.new_empty(found.shape, dtype=dtype)
    weight_grad = total.new_zeros((-(-scale.numel() // _ROWS), len(weight))) if weight_learns else None
    read = _vectors(grad), _vectors(total), _array(weight), _array(scale).reshape(-1), _vectors(total_grad)
    use_threads()
    _rms_norm_backward(*read, _vectors(found), _vectors(rounded), _vectors(weight_grad))
    return found, found if dtype == found.dtype else rounded, None if weight_grad is None else weight_grad.sum(0)


@dataclass(frozen=True)
class Side:
    """Which vectors of [N, H, d] are gathered: of some heads, those of the tokens `at` [b, C]; -1 stands for zeros.

    With angles [., d] of all tokens, cosines and then sines, the vectors are rotated: each number of the first half
    with one of the second. With `words` [.] the vectors are those of words, and it says which word each token is.
    """

    heads: slice
    at: Tensor
    angles: Tensor | None = None
    words: Tensor | None = None

    @property
    def arrays(self) -> tuple[int, Indices, Numbers | None, Indices | None]:
        angles, words = (None if x is None else x.numpy() for x in (self.angles, self.words))
        return self.heads.start, self.at.numpy(), angles, words


def gather(given: Tensor, side: Side, *dtypes: torch.dtype) -> list[Tensor]:
    """Vectors [b, h, C, d], rotated in fp32; in each of one or two dtypes."""
    shape = len(side.at), side.heads.stop - side.heads.start, side.at.shape[1], given.shape[2]
    # The finer comes first: of it the other is made.
    found = {dtype: given.new_empty(shape, dtype=dtype) for dtype in sorted(dtypes, key=lambda dtype: -dtype.itemsize)}
    one, *other = map(_array, found.values())
    use_threads()
    _gather(_array(given), *side.arrays, one, other[0] if other else None)
    return [found[dtype] for dtype in dtypes]


def scatter_add(rows: Tensor, side: Side, sums: Tensor) -> None:
    """Add vectors to those of `sums` [N, H, d] that they were gathered from, rotated back: the gradient of `gather`."""
    rows = rows.view(len(side.at), side.heads.stop - side.heads.start, -1, sums.shape[2])
    use_threads()
    _scatter_add(_array(rows), *side.arrays, _array(sums))


def _array(x: Tensor) -> Either:
    x = x.detach().contiguous()
    return x.view(torch.uint16).numpy() if x.dtype == torch.bfloat16 else x.numpy()


def _vectors(x: Tensor | None) -> Either | None:
    """[N, D]."""
    return None if x is None else _array(x).reshape(-1, x.shape[-1])


@_loops
def _swiglu(given: Either, found: Either) -> None:
    for n in numba.prange(len(found)):
        both, row = given[n], found[n]
        size = len(row)
        for i in range(size):
            gate = _load(both[i])
            _store(row, i, gate * _sigmoid(gate) * _load(both[size + i]))


@_loops
def _swiglu_backward(given: Either, grad: Either, found: Either) -> None:
    for n in numba.prange(len(grad)):
        both, own, row = given[n], grad[n], found[n]
        size = len(own)
        for i in range(size):
            gate, up, x = _load(both[i]), _load(both[size + i]), _load(own[i])
            share = _sigmoid(gate)
            _store(row, i, x * up * share * (_ONE + gate * (_ONE - share)))
            _store(row, size + i, x * gate * share)


@_loops
def _rms_norm(
    given: Numbers, added: Either | None, weight: Numbers, eps: float, total: Numbers, found: Either, scale: Numbers
) -> None:
    size = len(weight)
    for block in numba.prange(-(-len(found) // _ROWS)):
        sums = np.empty(_SIDE_BY_SIDE, np.float32)
        for n in range(block * _ROWS, min(len(found), (block + 1) * _ROWS)):
            row, of_unit_size = total[n], found[n]
            if added is not None:
                for i in range(size):
                    row[i] = given[n, i] + _load(added[n, i])
            inverse = _ONE / np.sqrt(_dot(row, row, sums) / np.float32(size) + eps)
            for i in range(size):
                _store(of_unit_size, i, row[i] * inverse * weight[i])
            scale[n] = inverse


@_loops
def _rms_norm_backward(
    grad: Either,
    total: Numbers,
    weight: Numbers,
    scale: Numbers,
    total_grad: Numbers | None,
    found: Numbers,
    rounded: Either | None,
    weight_grad: Numbers | None,
) -> None:
    size = len(weight)
    for block in numba.prange(-(-len(found) // _ROWS)):
        sums, own = np.empty(_SIDE_BY_SIDE, np.float32), np.empty(size, np.float32)
        for n in range(block * _ROWS, min(len(found), (block + 1) * _ROWS)):
            row, grad_row, inverse = total[n], found[n], scale[n]
            for i in range(size):
                own[i] = _load(grad[n, i]) * weight[i]
            projection = _dot(own, row, sums) * inverse * inverse * inverse / np.float32(size)
            for i in range(size):
                grad_row[i] = own[i] * inverse - row[i] * projection
            if total_grad is not None:
                for i in range(size):
                    grad_row[i] += total_grad[n, i]
            if rounded is not None:
                for i in range(size):
                    _store(rounded[n], i, grad_row[i])
            if weight_grad is not None:
                for i in range(size):
                    weight_grad[block, i] += _load(grad[n, i]) * row[i] * inverse


@_loops
def _gather(
    given: Either,
    first: int,
    at: Indices,
    angles: Numbers | None,
    words: Indices | None,
    found: Either,
    rounded: Either | None,
) -> None:
    rows, heads, columns, size = found.shape
    half = size // 2
    for n in numba.prange(rows * heads):
        b, h = n // heads, n % heads
        for c in range(columns):
            index, row = at[b, c], found[b, h, c]
            if index < 0:
                for i in range(size):
                    _store(row, i, _ZERO)
            else:
                vector = given[index if words is None else words[index], first + h]
                if angles is None:
                    for i in range(size):
                        _store(row, i, _load(vector[i]))
                else:
                    angle = angles[index]
                    for i in range(half):
                        one, other, cosine, sine = _load(vector[i]), _load(vector[half + i]), angle[i], angle[half + i]
                        _store(row, i, one * cosine - other * sine)
                        _store(row, half + i, one * sine + other * cosine)
            if rounded is not None:
                more = rounded[b, h, c]
                for i in range(size):
                    _store(more, i, _load(row[i]))


@_loops
def _scatter_add(
    rows: Either, first: int, at: Indices, angles: Numbers | None, words: Indices | None, sums: Either
) -> None:
    heads, size = rows.shape[1], rows.shape[3]
    half = size // 2
    for h in numba.prange(heads):  # rows share tokens, and no heads
        for b in range(len(at)):
            for c in range(at.shape[1]):
                index = at[b, c]
                if index < 0:
                    continue
                vector, total = rows[b, h, c], sums[index if words is None else words[index], first + h]
                if angles is None:
                    for i in range(size):
                        _store(total, i, _load(total[i]) + _load(vector[i]))
                else:
                    angle = angles[index]
                    for i in range(half):
                        one, other, cosine, sine = _load(vector[i]), _load(vector[half + i]), angle[i], angle[half + i]
                        _store(total, i, _load(total[i]) + (one * cosine + other * sine))
                        _store(total, half + i, _load(total[half + i]) + (other * cosine - one * sine))


@_part
def _dot(one: Numbers, other: Numbers, sums: Numbers) -> Any:
    """The dot product of two vectors [D]; `sums` is room for as many as are taken side by side."""
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
