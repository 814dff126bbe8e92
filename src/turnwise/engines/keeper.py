"""Keeps a server running, and stops it when whoever asked for it is gone, even if killed.

`python -m turnwise.engines.keeper COMMAND...` runs until its standard input ends, as it does when its parent dies. What
is written there says that the server is ready.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

_POLL_S = 0.1
_SOON_S = 60.0
_PATIENCE_S = 10.0  # between asking a server to stop and killing it


def keep(command: Sequence[str]) -> int:
    """Run the command again and again; the exit code of a server that cannot start, else 0.

    One that ends before it was ever ready, or later fails by itself within a minute, would do so again. Any other that
    ends, or is killed, is started again.
    """
    parent_gone, ready = threading.Event(), threading.Event()
    threading.Thread(target=_watch, args=(parent_gone, ready), daemon=True).start()
    while not parent_gone.is_set():
        began = time.monotonic()
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        while server.poll() is None and not parent_gone.wait(_POLL_S):
            pass
        code = server.poll()
        _stop(server)
        soon = time.monotonic() - began < _SOON_S
        if code is not None and (not ready.is_set() or (code > 0 and soon)):
            return code
    return 0


def _watch(gone: threading.Event, ready: threading.Event) -> None:
    while os.read(0, 4096):  # not through sys.stdin, whose lock a thread that waits would hold at the end
        ready.set()
    gone.set()


def _stop(server: subprocess.Popen[bytes]) -> None:
    """End the server and the processes that it started, which outlive it when it is killed."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(server.pid, sign)
            server.wait(_PATIENCE_S)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: None)  # of all processes of a job: the parent decides when to end
    sys.exit(keep(sys.argv[1:]))
