"""Memory: what is freed stays with the process, and where a GPU has no more, a sentence says what to do."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # of malloc.h
_HEAP = 2**26  # bytes of each of the heaps that threads have, all but the first
_MOST_KEPT = 2**31 - 1  # at the end of the first heap
_PAGE, _USE_LARGE_PAGES = 2**21, 14  # of a processor; of mman.h


def keep_freed_memory() -> None:
    """Let the allocator of glibc keep what is freed: else each large tensor is cleared page by page by the system.

    To be called before much is set aside, since what comes then lies in large pages.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if hasattr(libc, "mallopt"):
        # Before 2.35 it takes no more than 32 MiB, and once anything is set moves no threshold by itself any more.
        _ = libc.mallopt(_MMAP_THRESHOLD, 2**30) or libc.mallopt(_MMAP_THRESHOLD, 2**25)
        libc.mallopt(_TRIM_THRESHOLD, _MOST_KEPT)
        libc.mallopt(_TOP_PAD, _HEAP)  # or a heap is given back as soon as it is empty, whatever the threshold
        _use_large_pages(libc)


def _use_large_pages(libc: ctypes.CDLL) -> None:
    """Let the first heap, the main thread's, grow into large pages, where the system has them for those who ask.

    A pass of a small model reads some 20 MB here and there: with pages of 4 KiB a processor spends a tenth of it on
    looking up where they are.
    """
    libc.sbrk.restype, libc.sbrk.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t]
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    start = -(-libc.sbrk(0) // _PAGE) * _PAGE
    for part in [libc.malloc(_MOST_KEPT // 4) for _ in range(3)]:  # room, which nobody has touched and is kept
        libc.free(part)
    length = (libc.sbrk(0) or 0) - start
    if length > 0:
        libc.madvise(start, length, _USE_LARGE_PAGES)


_ADVICE = "lower update.micro_tokens or rollout.n_env, or set update.gradient_checkpointing=true or model.lora.rank=32"


@contextmanager
def enough_memory(advice: str = _ADVICE) -> Iterator[None]:
    """A ValueError where a GPU has too little."""
    try:
        yield
    except RuntimeError as error:
        torch = sys.modules.get("torch")  # not every command needs it
        if torch is None or not isinstance(error, torch.OutOfMemoryError):
            raise
        raise ValueError(f"the GPU is full ({str(error).partition('. ')[0]}); {advice}") from error
