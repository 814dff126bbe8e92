"""Environments that child processes import by name: no torch here."""

import os
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium


class Refusing(gymnasium.Env[str, str]):
    """Cannot be made."""

    def __init__(self, error: str):
        if error == "hang":
            time.sleep(600)
        if error == "UnicodeDecodeError":
            b"\xff".decode()
        raise {"ValueError": ValueError, "OSError": OSError}[error]("no such map")


class Threaded(gymnasium.Env[str, str]):
    """Writes down in which process and thread it is called."""

    actions = ("go", "stay")

    def __init__(self, log: str):
        self.log = Path(log)
        self.note("make")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.note("reset")
        return "here", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.note("step")
        return "there", 0.0, False, False, {}

    def translate(self, said: str) -> str | None:
        self.note("translate")
        return {"walk": "go", "fly": "flap"}.get(said)

    def expert(self) -> str:
        self.note("expert")
        return "stay"

    def close(self) -> None:
        self.note("close")

    def note(self, call: str) -> None:
        with self.log.open("a") as file:
            file.write(f"{call} {os.getpid()} {threading.get_ident()}\n")
