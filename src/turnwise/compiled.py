"""Loops that numba compiles when they are first run, and keeps for later processes; and what they need beyond numba.

What is kept is made anew where the loops' own file has changed, and no other.
"""

from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic


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
