"""The global random numbers of Python and NumPy, lent to one environment at a time.

A game that draws from them is a function of its seed only while nobody else draws in between.
"""

import random
import threading
from typing import Any

import numpy as np

_lending = threading.Lock()  # environments live in threads, and all of them share these two generators


class GlobalRandom:
    """`with` it, both generators go on where this object left them; afterwards they are as they were before."""

    def __init__(self, seed: int):
        self._mine = random.Random(seed).getstate(), np.random.RandomState(seed).get_state()

    def __enter__(self) -> None:
        _lending.acquire()
        self._theirs = _swap(*self._mine)

    def __exit__(self, *_: object) -> None:
        self._mine = _swap(*self._theirs)
        _lending.release()


def _swap(python: Any, numpy: Any) -> tuple[Any, Any]:
    before = random.getstate(), np.random.get_state()
    random.setstate(python)
    np.random.set_state(numpy)
    return before
