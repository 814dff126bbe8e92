"""Servers that run as child processes, on loopback ports of their own."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_POLL_S = 0.5
_PATIENCE_S = 30.0
_TAIL = 600  # characters of a log that are shown


def free_port() -> int:
    """A port of the loopback interface that nobody uses just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Launched:
    """A command that serves, started again when it dies, stopped when this process ends, however it ends."""

    def __init__(self, command: Sequence[str], log: Path, variables: Mapping[str, str]):
        """`variables` are added to the environment. What the command prints goes to `log`."""
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as stream:
            self._keeper = subprocess.Popen(
                [sys.executable, "-m", "turnwise.engines.keeper", *command],
                stdin=subprocess.PIPE,  # its end is the sign to stop
                stdout=stream,
                stderr=subprocess.STDOUT,
                env={**os.environ, **variables},
                start_new_session=True,  # Ctrl-C stops the trainer after its step, and until then it needs servers
            )

    def wait(self, ready: Callable[[], bool], start_s: float) -> None:
        """Until it is ready. One that cannot start is a ValueError with the end of its log."""
        deadline = time.monotonic() + start_s
        while not ready():
            code = self._keeper.poll()
            if code is not None or time.monotonic() > deadline:
                why = f"ended with code {code}" if code is not None else f"is not ready after {start_s:g} s"
                self.close()
                tail = " ".join(self.log.read_text(errors="replace")[-_TAIL:].split())
                raise ValueError(f"the server that engine.launch started {why}; see {self.log}, which ends: {tail}")
            time.sleep(_POLL_S)
        with suppress(BrokenPipeError):  # it may have ended just now; its requests will tell
            assert self._keeper.stdin is not None
            self._keeper.stdin.write(b"ready")
            self._keeper.stdin.flush()

    def close(self) -> None:
        assert self._keeper.stdin is not None
        with suppress(BrokenPipeError):  # what it was not told before it ended
            self._keeper.stdin.close()
        self._keeper.wait(_PATIENCE_S)
