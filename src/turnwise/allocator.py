"""Memory that is freed stays with the process."""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h


def keep_freed_memory() -> None:
    """Let the allocator of glibc keep what is freed: else each large tensor is cleared page by page by the system."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if hasattr(libc, "mallopt"):
        libc.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(_MMAP_THRESHOLD, 2**30)
