"""How far a run is, how long its parts take, and how a user stops it."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event
from typing import Any


@dataclass
class Progress:
    """How far a run is; with the weights, the optimizers and the slots, all that a resumed run needs."""

    step: int = 0  # batches trained on
    collected: int = 0  # warm-up batches
    fitted: int = 0  # warm-up iterations
    warm: bool = False  # the warm-up is over
    critic_loss: float | None = None  # in the newest warm-up iteration
    kl_coefficient: float = 0.0
    turns: int = 0  # played in all, in the environment
    seconds: float = 0.0  # of work, over all sessions
    lines: int = 0  # of metrics.jsonl
    traces: int = 0  # of episodes
    recent: dict[str, Any] = field(default_factory=dict)  # outcomes


class Clock:
    """Seconds spent in each part of a step."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = now - self._last
        self._last = now

    def total(self) -> float:
        return sum(self.laps.values())


@contextmanager
def interruptible() -> Iterator[Event]:
    """Ctrl-C, or the SIGTERM of a cluster, asks the loop to stop after the step under way; a second Ctrl-C, at once."""
    stop, owner = Event(), os.getpid()

    def ask(number: int, _: object) -> None:
        if os.getpid() != owner:  # a fork of ours, such as a scorer's, which is to end as any other process
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif number == signal.SIGINT and stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    try:
        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread, where no signal arrives
        yield stop
        return
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
