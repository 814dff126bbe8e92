"""Memory: what is freed stays with the process, and where a GPU has no more, a sentence says what to do."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # of malloc.h
_HEAP = 2**26  # bytes of each of the heaps that threads have, all but the first


def keep_freed_memory() -> None:
    """Let the allocator of glibc keep what is freed: else each large tensor is cleared page by page by the system."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if hasattr(libc, "mallopt"):
        # Before 2.35 it takes no more than 32 MiB, and once anything is set moves no threshold by itself any more.
        _ = libc.mallopt(_MMAP_THRESHOLD, 2**30) or libc.mallopt(_MMAP_THRESHOLD, 2**25)
        libc.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(_TOP_PAD, _HEAP)  # or a heap is given back as soon as it is empty, whatever the threshold


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
