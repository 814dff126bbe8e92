"""Loops that numba compiles when they are first run, and keeps for later processes."""

from collections.abc import Callable
from typing import Any

import numba


def compiled(loops: Callable[..., Any], **how: Any) -> Any:
    """The loops; kept where there is a place that may be written to."""
    try:
        return numba.njit(cache=True, **how)(loops)
    except RuntimeError:
        return numba.njit(**how)(loops)
