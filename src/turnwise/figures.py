"""Numbers that somebody else gives us: an environment, an agent, a reward."""

import math
from numbers import Real
from typing import Any


def shown(value: Any) -> str:
    """A value in a sentence: the beginning of its text, where it has one."""
    try:
        return f"{value!r:.80}"
    except Exception:  # of a whole number of thousands of digits, or of whatever its author made
        return f"a value of type {type(value).__name__}"


def finite(value: Any) -> float | None:
    """A finite number as a float; None for anything else."""
    try:
        return float(value) if isinstance(value, Real) and math.isfinite(value) else None
    except OverflowError:
        return None
