"""What a program of the model's can do, and what it cannot."""

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from turnwise.tools import ToolFault, python
from turnwise.tools.python import PythonTool

REFUSAL = python._refusal("512", "16", "60")
isolates = pytest.mark.skipif(bool(REFUSAL), reason=f"programs cannot be isolated here: {REFUSAL}")


def run(program: str, **config: Any) -> str:
    config = {"wall_s": 300, "cpu_s": 60, "timeout_s": 400, **config}
    return asyncio.run(PythonTool(config).execute("", {"code": program}))


THREADS = ["MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"]
KNOWN = ["HOME", "LANG", "PATH", "PYTHONDONTWRITEBYTECODE", *THREADS]  # in the environment
ATTEMPTS = """
import ctypes, os, signal, socket, sys

libc = ctypes.CDLL(None, use_errno=True)

def call(name, *arguments):
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)

attempts = {
    "internet": lambda: socket.socket(),
    "unix socket": lambda: socket.socket(socket.AF_UNIX),
    "vsock": lambda: socket.socket(40),
    "fork": os.fork,
    "spawn": lambda: os.posix_spawn("/bin/true", ["true"], {}),
    "namespace": lambda: call("unshare", 0x10000000),
    "mount": lambda: call("mount", b"tmpfs", b"/tmp", b"tmpfs", 0, None),
    "remount": lambda: call("mount", None, b"/usr", None, 4096 | 32, None),
    "chroot": lambda: os.chroot("/tmp"),
    "device": lambda: os.mknod("/tmp/disk", 0o60600, os.makedev(8, 0)),
    "hidden memory": lambda: os.memfd_create("a"),
    "shared memory": lambda: call("shmget", 0, 4096, 0o1600),
    "semaphores": lambda: call("semget", 0, 32000, 0o1600),
    "keys": lambda: call("syscall", {"x86_64": 250, "aarch64": 219}[os.uname().machine], 0, -3, 0, 0, 0),
    "write to the system": lambda: open("/usr/turnwise", "w"),
    "write to the interpreter": lambda: open(sys.base_prefix + "/turnwise", "w"),
    "passwords": lambda: open("/etc/passwd"),
    "processes": lambda: os.listdir("/proc"),
    "devices": lambda: os.listdir("/dev"),
    "our files": lambda: open(OURS),
    "raise a limit": lambda: __import__("resource").setrlimit(7, (1000, 1000)),
}
for name, attempt in attempts.items():
    try:
        attempt()
        print(name, "worked")
    except OSError:
        pass
    except ValueError:
        pass
os.kill(0, signal.SIGCONT)
print(sorted(os.environ), os.getpid(), os.getppid(), "end")
"""


@isolates
def test_nothing_outside_can_be_reached():
    assert run(f"OURS = {__file__!r}\n" + ATTEMPTS) == f"{sorted(KNOWN)} 2 1 end"


@isolates
def test_no_privilege_is_left():
    ask = "import ctypes; ask = ctypes.CDLL(None).prctl; "
    assert run(ask + "print(sum(ask(23, n, 0, 0, 0) for n in range(40)), ask(39, 0, 0, 0, 0))") == "0 1"


@isolates
def test_a_program_computes_and_keeps_files_of_its_own():
    program = "import threading\nopen('a', 'w').write('42')\nshow = lambda: print(open('/tmp/a').read())\n"
    assert run(program + "t = threading.Thread(target=show)\nt.start()\nt.join()") == "42"
    assert "No such file" in run("open('/tmp/a')")  # the next program finds nothing of it


@isolates
@pytest.mark.parametrize(
    ("program", "said", "config"),
    [
        ("x = bytearray(900 << 20)", "MemoryError", {"memory_mb": 256}),
        ("open('a', 'wb').write(bytes(9 << 20))", "No space left", {"disk_mb": 2}),
        ("[open(str(i), 'wb').write(bytes(1 << 20)) for i in range(9)]", "No space left", {"disk_mb": 2}),
        ("[open(str(i), 'w').close() for i in range(3000)]", "No space left", {"disk_mb": 2}),
        ("while True: pass", "(exit status 137)", {"cpu_s": 1}),
        ("import time; time.sleep(900)", "(stopped after 1 s)", {"wall_s": 1}),
        ("1 / 0", "ZeroDivisionError", {}),
        ("import os; os._exit(7)", "(exit status 7)", {}),
        ("import ctypes; ctypes.string_at(0)", "(exit status", {}),
        ("import os; os.kill(0, 9); os.kill(-1, 9)", "", {}),
    ],
)
def test_limits_hold_and_crashes_are_survived(program: str, said: str, config: dict[str, Any]):
    assert said in run(program, **config)


LIVES_ON = """
import os, sys, threading, time
again = [sys.executable, "-I", "-c", "import time; time.sleep(60)"]
threading.Thread(target=os.execv, args=(sys.executable, again)).start()
time.sleep(60)
"""


@isolates
def test_a_program_that_becomes_another_is_stopped_as_well():
    """What is executed by a thread has no tie to its parent."""
    begun = time.monotonic()
    assert run(LIVES_ON, wall_s=2) == "(stopped after 2 s)"
    assert time.monotonic() - begun < 30


@isolates
def test_endless_output_is_not_kept():
    assert len(run("for _ in range(40): print('x' * 100_000)")) <= python._OUTPUT + 100


@isolates
def test_a_program_that_prints_when_its_time_is_over_is_stopped_then():
    begun = time.monotonic()
    said = run("while True: print('x' * 1000)", wall_s=2)
    assert said.startswith("x") and said.endswith("(stopped after 2 s)")
    assert time.monotonic() - begun < 60


@isolates
def test_time_in_which_the_event_loop_was_busy_is_not_the_programs():
    async def beside() -> str:
        tool = PythonTool({"wall_s": 5, "timeout_s": 400})
        running = asyncio.create_task(tool.execute("", {"code": "print('done')"}))
        await asyncio.sleep(0)
        time.sleep(7)
        return await running

    assert asyncio.run(beside()) == "done"


@isolates
def test_a_machine_that_is_full_is_no_lesson_for_the_model(monkeypatch: Any):
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(python.tempfile, "TemporaryDirectory", full)
    with pytest.raises(ToolFault, match=r"did not start: .*No space left on device"):
        run("print(1)")


@isolates
def test_a_sandbox_that_does_not_start_is_no_answer(monkeypatch: Any, tmp_path: Path):
    broken = tmp_path / "sandbox.py"
    broken.write_text("raise OSError('no room')")
    monkeypatch.setattr(python, "_SANDBOX", broken)
    with pytest.raises(ToolFault, match="did not start: OSError: no room"):
        run("print(1)")


@isolates
def test_limits_that_no_interpreter_fits_in_are_refused():
    with pytest.raises(ValueError, match="runs none: "):
        PythonTool({"memory_mb": 8})


@isolates
def test_an_interpreter_may_be_known_by_a_link(monkeypatch: Any, tmp_path: Path):
    link = tmp_path / "linked"
    link.symlink_to(sys.prefix)
    monkeypatch.setattr(python.sys, "executable", str(link / "bin" / Path(sys.executable).name))
    assert run("import sys; print(sys.prefix)") == str(link)


def test_without_isolation_there_is_no_tool(monkeypatch: Any):
    python._refusal.cache_clear()
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match="runs none: unshare and setpriv of util-linux are not installed"):
        PythonTool()
    python._refusal.cache_clear()


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"memory": 3}, "no key config.memory"),
        ({"cpu_s": 0}, "config.cpu_s of the Python tool is 0"),
        ({"wall_s": 30}, "must be below timeout_s=30"),
    ],
)
def test_limits_are_checked(config: dict[str, Any], said: str):
    with pytest.raises(ValueError, match=said):
        PythonTool(config)
