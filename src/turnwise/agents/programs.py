"""A program that plays an episode, in a process of its own."""

import asyncio
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from turnwise.failures import EpisodeFailure

_LOOK_S = 0.02  # between two looks whether it has ended
_GRACE_S = 5.0  # between being asked to stop and being killed
_TAIL = 2000  # bytes of its output that are searched for a last line


class Command:
    """A command line, run without a shell."""

    def __init__(self, line: str):
        self.line = line
        try:
            self._words = shlex.split(line)
        except ValueError as error:
            raise ValueError(f"agent.command is {line!r}, which is no command line: {error}") from error
        if not self._words or not shutil.which(self._words[0]):
            raise ValueError(f"agent.command is {line!r}, and there is no such program; give its path")

    async def __call__(self, told: bytes, variables: Mapping[str, str]) -> None:
        """Run it once, with a text on its standard input. It and all that it started are stopped at the end.

        Raises EpisodeFailure, with the last line that it wrote, if it cannot be started or exits with a code but 0.
        """
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as written:
            given.write(told)
            given.seek(0)
            # Not asyncio's own: cancelled while it starts a program, it forgets what the program has started.
            try:
                process = subprocess.Popen(
                    self._words,
                    stdin=given,
                    stdout=written,
                    stderr=written,
                    env={**os.environ, **variables},
                    start_new_session=True,  # so that all that it starts can be stopped with it
                )
            except OSError as error:
                raise EpisodeFailure(f"{self.line} cannot be started: {error}") from error
            try:
                code = await _ended(process)
            finally:
                await _stop(process)
            if code:
                raise EpisodeFailure(f"{self.line} exited with code {code}: {_last_line(written)}")


async def _ended(process: subprocess.Popen[bytes]) -> int:
    while (code := process.poll()) is None:
        await asyncio.sleep(_LOOK_S)
    return code


async def _stop(process: subprocess.Popen[bytes]) -> None:
    try:
        with suppress(ProcessLookupError, TimeoutError):
            os.killpg(process.pid, signal.SIGTERM)
            await asyncio.wait_for(_ended(process), _GRACE_S)
    finally:  # whoever is cancelled here too must leave nothing behind
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _last_line(output: Any) -> str:
    output.seek(max(0, output.seek(0, os.SEEK_END) - _TAIL))
    lines = output.read().decode(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "it wrote nothing"
