"""Ends processes when whoever is responsible for them is gone, even if killed.

`python -m turnwise.engines.reaper PID...` waits until its standard input ends, as it does when its parent dies.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence

_POLL_S = 0.1
_PATIENCE_S = 10.0  # between asking to end and killing


def reap(pids: Sequence[int]) -> None:
    """Ask the processes to end, and kill those that do not."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + _PATIENCE_S
        left = [pid for pid in pids if _send(pid, sign)]
        while left and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            left = [pid for pid in left if _send(pid, 0)]


def _send(pid: int, sign: int) -> bool:
    """Whether there was such a process."""
    try:
        os.kill(pid, sign)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    while os.read(0, 4096):
        pass
    reap([int(pid) for pid in sys.argv[1:]])
