"""A tracer that works in a thread of its own, so that one that is slow or fails costs traces and nothing else."""

import queue
from collections.abc import Callable, Sequence
from functools import partial
from threading import Thread

from turnwise.protocols import Tracer
from turnwise.traces.entries import Entry

_WAITING = 256  # traces, beyond which new ones are dropped
_PATIENCE_S = 30.0  # at the end of a run


class Background:
    def __init__(self, make: Callable[[], Tracer], waiting: int = _WAITING, patience_s: float = _PATIENCE_S):
        """`make` is called in the thread. At most so many traces wait; at the end, they are waited for so long."""
        self.lost = 0  # traces
        self.trouble = ""  # the newest
        self._patience_s = patience_s
        self._jobs: queue.Queue[Callable[[Tracer], None] | None] = queue.Queue(waiting)
        self._thread = Thread(target=self._work, args=(make,), name="traces", daemon=True)
        self._thread.start()

    def write(self, trace: Sequence[Entry]) -> None:
        try:
            self._jobs.put_nowait(lambda tracer: tracer.write(trace))
        except queue.Full:
            self.lost += 1
            self.trouble = f"{self._jobs.maxsize} traces wait already"

    def forget_after(self, traces: int) -> None:
        self._jobs.put(lambda tracer: tracer.forget_after(traces))

    def close(self) -> None:
        try:
            self._jobs.put(None, timeout=self._patience_s)
        except queue.Full:
            self.lost += self._jobs.qsize()
            return
        self._thread.join(self._patience_s)
        if self._thread.is_alive():
            self.lost += self._jobs.qsize()
