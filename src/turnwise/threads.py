"""PyTorch's threads, for loops that numba compiles: of two sets of threads each would wait for the other."""

from functools import cache
from pathlib import Path
from typing import Any

import numba
import torch
from numba.core import config

_settings: Any = config
_settings.THREADING_LAYER = "omp"


@cache
def has_threads() -> bool:
    """Whether there is a library of threads that PyTorch has in common with numba."""
    return (Path(torch.__file__).parent / "lib" / "libgomp.so.1").exists()


def use_threads(several: bool = True) -> None:
    """Run the loops in as many threads as PyTorch has here, or in one; they are compiled for one where none fit."""
    if not has_threads():
        return
    threads = torch.get_num_threads()
    numba.set_num_threads(min(threads, _settings.NUMBA_NUM_THREADS) if several else 1)
    if torch.get_num_threads() != threads:  # when the layer starts, it gives its number of threads to PyTorch too
        torch.set_num_threads(threads)
