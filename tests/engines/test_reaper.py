"""What is entrusted to the reaper ends, whether it listens or not."""

import subprocess
import sys

import pytest

from turnwise.engines import reaper

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"


def test_when_its_input_ends_processes_end(tmp_path):
    with subprocess.Popen(["sleep", "600"]) as sleeper:
        command = [sys.executable, "-m", "turnwise.engines.reaper", str(sleeper.pid)]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
            with pytest.raises(subprocess.TimeoutExpired):
                sleeper.wait(0.5)
            process.communicate()
            assert process.returncode == 0
        assert sleeper.wait(5) == -15


def test_what_does_not_listen_is_killed_and_what_is_gone_is_passed_over(monkeypatch):
    monkeypatch.setattr(reaper, "_PATIENCE_S", 0.3)
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    with subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE) as deaf:
        assert deaf.stdout
        deaf.stdout.readline()
        reaper.reap([gone.pid, deaf.pid])
        assert deaf.wait(5) == -9
