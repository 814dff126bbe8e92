"""Servers that we start: alive when they die, gone when we are, and told apart when they cannot start."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turnwise.engines.launch import Launched, free_port

SERVER = """
import os, socket, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open(sys.argv[2], "a") as log:
    print(os.getpid(), child.pid, os.environ.get("TOLD"), file=log, flush=True)
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    listener.accept()[0].close()
"""


def until(condition: Callable[[], Any], limit_s: float = 120.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.05)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def born(tmp_path: Path) -> Callable[[], list[list[int]]]:
    """The processes of each life of the server."""
    return lambda: [[int(word) for word in line.split()[:2]] for line in (tmp_path / "born").read_text().splitlines()]


def command(tmp_path: Path, port: int) -> list[str]:
    return [sys.executable, "-c", SERVER, str(port), str(tmp_path / "born")]


def test_a_server_that_is_killed_is_started_again_and_ends_with_us(tmp_path, port, born):
    launched = Launched(command(tmp_path, port), tmp_path / "logs" / "log", {"TOLD": "something"})
    launched.wait(lambda: listens(port), 120)
    (first,) = born()
    os.kill(first[0], signal.SIGKILL)
    until(lambda: len(born()) == 2 and listens(port))
    until(lambda: not any(map(lives, first)))  # its children do not outlive it
    launched.close()
    until(lambda: not any(map(lives, born()[1])))
    assert not listens(port)
    assert (tmp_path / "born").read_text().count("something") == 2


def test_a_server_ends_when_whoever_started_it_is_killed(tmp_path, port, born):
    arguments = f"{command(tmp_path, port)!r}, pathlib.Path({str(tmp_path / 'log')!r}), {{}}"
    code = f"import pathlib, time, turnwise.engines.launch as it\nit = it.Launched({arguments})\ntime.sleep(600)"
    parent = subprocess.Popen([sys.executable, "-c", code])
    until(lambda: listens(port))
    parent.kill()
    parent.wait()
    until(lambda: not any(map(lives, born()[0])))
    assert len(born()) == 1


def test_a_server_that_cannot_start_is_told_with_the_end_of_its_log(tmp_path):
    cannot = [sys.executable, "-c", "import sys; sys.exit('no such\\nmodel')"]
    with pytest.raises(ValueError, match=r"ended with code 1; see .*log, which ends: no such model$"):
        Launched(cannot, tmp_path / "log", {}).wait(lambda: False, 120)


@pytest.mark.parametrize("ending", ["sys.exit(0)", "os.kill(os.getpid(), 9)"])
def test_a_server_that_ends_before_it_was_ready_is_not_started_again(tmp_path, ending):
    code = f"import os, sys; print('once', flush=True); {ending}"
    with pytest.raises(ValueError, match=r"ended with code .* which ends: once$"):
        Launched([sys.executable, "-c", code], tmp_path / "log", {}).wait(lambda: False, 120)


def test_a_server_that_takes_too_long_is_stopped(tmp_path, port, born):
    launched = Launched(command(tmp_path, port), tmp_path / "log", {})
    until(lambda: listens(port))
    with pytest.raises(ValueError, match=r"is not ready after 0\.1 s"):
        launched.wait(lambda: False, 0.1)
    until(lambda: not any(map(lives, born()[0])))
