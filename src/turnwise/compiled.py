"""Loops that numba compiles when they are first run, and keeps for later processes; and what they have in common.

What is kept is made anew where the loops' own file has changed, and no other: so what stands here must not come to
compute something else under the same name.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

_BIAS, _FRACTION = np.int32(127), np.int32(23)  # of exponents, as fp32 writes them
_SERIES = tuple(np.float32(np.log(2) ** n / np.prod(np.arange(1, n + 1))) for n in range(7))


def compiled(loops: Callable[..., Any], **how: Any) -> Any:
    """The loops; kept where there is a place that may be written to."""
    try:
        return numba.njit(cache=True, **how)(loops)
    except RuntimeError:
        return numba.njit(**how)(loops)


def _fma(context: Any, one: Any, other: Any, more: Any) -> Any:
    """one * other + more, rounded once, by one instruction; in fp32 if all are, else in fp64."""
    kind = types.float32 if {one, other, more} == {types.float32} else types.float64
    return kind(kind, kind, kind), lambda _, builder, __, given: builder.fma(*given)


def _to_bits(context: Any, x: Any) -> Any:
    return types.uint32(types.float32), lambda _, builder, __, given: builder.bitcast(given[0], ir.IntType(32))


def _of_bits(context: Any, x: Any) -> Any:
    return types.float32(types.uint32), lambda _, builder, __, given: builder.bitcast(given[0], ir.FloatType())


fma: Any = intrinsic(_fma)
to_bits: Any = intrinsic(_to_bits)
of_bits: Any = intrinsic(_of_bits)


@numba.njit
def power_of_two(x: Any) -> Any:
    """2^x in fp32, to rounding, for x from -126 to 127, the exponents of normal numbers."""
    c0, c1, c2, c3, c4, c5, c6 = _SERIES
    whole = np.floor(x + np.float32(0.5))
    y = x - whole
    part = fma(y, fma(y, fma(y, fma(y, fma(y, fma(y, c6, c5), c4), c3), c2), c1), c0)
    return part * of_bits(np.uint32((np.int32(whole) + _BIAS) << _FRACTION))
