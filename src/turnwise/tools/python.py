"""A Python interpreter for the model, in a sandbox that Linux builds."""

import contextlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from turnwise.calling import in_thread
from turnwise.tools.base import BaseTool
from turnwise.tools.records import ToolFault

_UNSHARE = ("unshare", "--user", "--map-root-user", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork")
_SANDBOX = Path(__file__).with_name("sandbox.py")
_STARTED = b"\0"  # what the sandbox prints when all is closed off; before it, only what went wrong
_OUTPUT = 1 << 20  # bytes of output that are kept; a program that prints more runs on


class PythonTool(BaseTool):
    """Runs a program in a fresh process and answers what it printed. Nothing is kept from one call to the next.

    Isolated: the network (no sockets but pairs of its own), all files but those named below, devices, other processes
    (none are seen, none can be started), environment variables, privileges. Memory, processor time, wall-clock time
    and written files are limited, and the program dies with us.

    Not isolated: the program can read `/usr`, `/lib`, `/bin` and the folders of the interpreter that runs turnwise,
    installed packages included; it shares the kernel, so a hole in Linux is a hole here; and it takes processor time
    and memory from its neighbours up to its limits. There is no GPU in it.

    Needs Linux on x86_64 or aarch64, util-linux (`unshare`, `setpriv`) and user namespaces; where one of them is
    missing the constructor raises ValueError. There is no mode without isolation.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, tool_schema: Any = None):
        super().__init__(config, tool_schema)
        limits = {"memory_mb": 512, "disk_mb": 16, "cpu_s": 10, "wall_s": 20, **self.config}
        for key, value in limits.items():
            if key not in ("memory_mb", "disk_mb", "cpu_s", "wall_s"):
                raise ValueError(f"the Python tool has no key config.{key}")
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"config.{key} of the Python tool is {value!r}; it must be a whole number above 0")
        self._wall_s = limits.pop("wall_s")
        if self._wall_s >= self.limits.timeout_s:
            raise ValueError(
                f"config.wall_s={self._wall_s} of the Python tool must be below timeout_s={self.limits.timeout_s:g}"
            )
        self._limits = [str(limits[key]) for key in ("memory_mb", "disk_mb", "cpu_s")]
        refusal = _refusal(*self._limits)
        if refusal:
            raise ValueError(f"the Python tool cannot isolate programs on this machine, so it runs none: {refusal}")

    def get_openai_tool_schema(self) -> Any:
        code = {"type": "string", "description": "A whole program; print what you want to know."}
        return {
            "name": "python",
            "description": "Run a Python program without network and files, and read what it prints.",
            "parameters": {"type": "object", "properties": {"code": code}, "required": ["code"]},
        }

    async def execute(self, instance_id: str, parameters: dict[str, Any]) -> str:
        program = parameters["code"].encode("utf-8", "replace")
        try:  # in a thread, since the model may keep the event loop busy for longer than a program may take
            output, note = await in_thread(lambda: self._run(program))
        except (OSError, RuntimeError) as error:  # no room for files, no further process or thread
            raise ToolFault(f"the sandbox of the Python tool did not start: {error}") from error
        failed, started, printed = output.partition(_STARTED)
        if not started:
            raise ToolFault(f"the sandbox of the Python tool did not start: {_last_line(failed) or note}")
        return "\n".join(part for part in (printed.decode("utf-8", "replace").rstrip("\n"), note) if part)

    def _run(self, program: bytes) -> tuple[bytes, str]:
        """What it printed, as much as is kept, and what is to be said of its end."""
        with tempfile.TemporaryDirectory() as root, _started(root, self._limits) as process:
            clock = threading.Timer(self._wall_s, process.kill)  # and with it everything in its namespace
            clock.start()
            try:
                output = _talk(process, program)
            finally:
                clock.cancel()
                process.kill()
        if process.returncode == -signal.SIGKILL:
            return output, f"(stopped after {self._wall_s} s)"
        return output, f"(exit status {process.returncode})" if process.returncode else ""


# A thread for each core takes address space, and the time of others; NumPy does without.
_ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
_ENVIRONMENT = {"PATH": os.defpath, "HOME": "/tmp", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", **_ONE_THREAD}


def _command(root: str, limits: Sequence[str]) -> list[str]:
    """The sandbox dies when we do: `setpriv` ties `unshare` to us, `--kill-child` ties the first process in its
    namespaces to it, and with that Linux ends the program."""
    isolated = [sys.executable, "-I", str(_SANDBOX), root, *limits]
    return ["setpriv", "--pdeathsig", "KILL", *_UNSHARE, "--kill-child", *isolated]


def _started(root: str, limits: Sequence[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        _command(root, limits),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=_ENVIRONMENT,
        cwd="/",
        start_new_session=True,  # so that no signal to a process group reaches us
    )


def _talk(process: "subprocess.Popen[bytes]", program: bytes) -> bytes:
    """Send the program, and read what it prints until it ends."""
    assert process.stdin and process.stdout
    kept = bytearray()
    with contextlib.suppress(BrokenPipeError), process.stdin as stream:
        stream.write(program)
    while chunk := os.read(process.stdout.fileno(), 1 << 16):
        kept += chunk[: _OUTPUT - len(kept)]
    process.wait()
    return bytes(kept)


@cache
def _refusal(*limits: str) -> str:
    """Why programs cannot be isolated here within these limits; empty where they can. Found out by isolating one."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        return "it needs Linux on x86_64 or aarch64"
    missing = [name for name in ("unshare", "setpriv") if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} of util-linux are not installed"
    with tempfile.TemporaryDirectory() as root:
        command = _command(root, limits)
        done = subprocess.run(command, input=b"print('isolated')", capture_output=True, env=_ENVIRONMENT, timeout=600)
    isolated = done.stdout == _STARTED + b"isolated\n"
    return "" if isolated else _last_line(done.stderr) or f"exit status {done.returncode}"


def _last_line(output: bytes) -> str:
    said = output.decode("utf-8", "replace").strip().splitlines()
    return said[-1][:200] if said else ""
