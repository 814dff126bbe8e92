"""A tracer that works in a thread of its own, so that one that is slow or fails costs traces and nothing else."""

import queue
import time
from collections.abc import Callable, Sequence
from threading import Thread

from turnwise.protocols import Tracer
from turnwise.traces.entries import Entry

_WAITING = 256  # traces, beyond which new ones are lost
_PATIENCE_S = 30.0  # at the end of a run


class Background:
    def __init__(self, make: Callable[[], Tracer], waiting: int = _WAITING, patience_s: float = _PATIENCE_S):
        """`make` is called in the thread, again and again until it works. At most so many traces wait; at the end,
        they are waited for so long.
        """
        self.lost = 0  # traces
        self.trouble = ""  # why the newest was lost
        self._make = make
        self._patience_s = patience_s
        self._known: int | None = None  # traces that are not to be forgotten
        self._tracer: Tracer | None = None
        self._jobs: queue.Queue[Sequence[Entry] | None] = queue.Queue(waiting)
        self._thread = Thread(target=self._work, name="traces", daemon=True)
        self._thread.start()

    def write(self, trace: Sequence[Entry]) -> None:
        try:
            self._jobs.put_nowait(trace)
        except queue.Full:
            self._lose(1, f"{self._jobs.maxsize} traces wait already")

    def forget_after(self, traces: int) -> None:
        """Before anything is written: nothing is, until this has worked."""
        self._known = traces
        self._jobs.put(())

    def close(self) -> None:
        until = time.monotonic() + self._patience_s
        try:
            self._jobs.put(None, timeout=self._patience_s)
        except queue.Full:
            pass
        else:
            self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive():
            self._lose(self._jobs.qsize(), f"they took longer than {self._patience_s:g} s")

    def _work(self) -> None:
        while (trace := self._jobs.get()) is not None:
            try:
                tracer = self._opened()
                if trace:
                    tracer.write(trace)
            except Exception as error:
                self._lose(bool(trace), f"{type(error).__name__}: {error}")
        if self._tracer is not None:
            self._tracer.close()

    def _opened(self) -> Tracer:
        if self._tracer is None:
            tracer = self._make()
            if self._known is not None:
                tracer.forget_after(self._known)
            self._tracer = tracer
        return self._tracer

    def _lose(self, traces: int, trouble: str) -> None:
        self.lost += traces
        self.trouble = " ".join(trouble.split())[:300]
