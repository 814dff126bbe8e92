"""An environment that fails by a schedule, and what the schedule foretells. Child processes import it: no torch."""

import asyncio
import ctypes
import math
import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium

from turnwise.config import Config
from turnwise.seeds import episode_seed

GARBAGE = ("none", "short", "nan", "no text", "bytes", "info", "endless", "exit politely", "cancels", "runs out")
Seeds = Callable[[int], int]


@dataclass(frozen=True)
class Schedule:
    """What goes wrong in which call: a function of the episode's seed and the number of the call, 0 for the reset."""

    crash: float = 0.0  # probability, in each call, of raising, or of ending the process
    deadly: float = 0.0  # share of the crashes that end the process
    hang: float = 0.0
    garbage: float = 0.0
    length: int = 30  # turns of the longest episodes
    planned: Mapping[str, str] = field(default_factory=dict)  # "seed/call" -> what goes wrong there, besides

    def fate(self, seed: int, call: int) -> str:
        if planned := self.planned.get(f"{seed}/{call}"):
            return planned
        rng = random.Random(f"{seed}/{call}")
        drawn = rng.random()
        if drawn < self.crash:
            return "exit" if rng.random() < self.deadly else "raise"
        if drawn < self.crash + self.hang:
            return "hang"
        return rng.choice(GARBAGE) if drawn < self.crash + self.hang + self.garbage else ""

    def turns(self, seed: int) -> int:
        """How long an episode lasts, if nothing goes wrong."""
        return random.Random(f"{seed}").randint(1, self.length)


class Faulty(gymnasium.Env[Any, str]):
    actions = ("go", "stay")
    default_action = "stay"

    def __init__(self, **schedule: Any):
        self.schedule = Schedule(**schedule)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        assert seed is not None
        self.level, self.calls, self.gone = seed, 0, 0
        return self.answer((self.observation(), {}))

    def step(self, action: str) -> Any:
        self.calls += 1
        self.gone += action == "go"
        over = self.calls == self.schedule.turns(self.level)
        return self.answer((self.observation(), float(self.gone), over, False, {"success": self.gone > self.calls / 2}))

    def translate(self, said: str) -> str | None:
        return "go" if said == f"walk {self.calls}" else None  # knows where it stands

    def observation(self) -> dict[str, Any]:
        return {"text": f"level {self.level} turn {self.calls} gone {self.gone}", "image": lambda: "no pickle"}

    def answer(self, sound: tuple[Any, ...]) -> Any:
        observation, *rest = sound
        fate = self.schedule.fate(self.level, self.calls)
        if fate == "raise":
            raise RuntimeError("the network is down")
        if fate == "exit politely":
            raise SystemExit(3)
        if fate == "cancels":
            raise asyncio.CancelledError
        if fate == "exit":
            os._exit(3)
        if fate == "segfault":
            ctypes.string_at(0)
        if fate == "runs out":
            next(iter(()))
        if fate == "hang with a helper":
            helper = subprocess.Popen(["sleep", "600"])
            Path(os.environ["HELPER"]).write_text(str(helper.pid))
        if fate.startswith("hang"):
            time.sleep(600)
        return {
            "none": None,
            "short": (observation,),
            "nan": (observation, math.nan, *rest[1:]),
            "no text": ({"image": "x"}, *rest),
            "bytes": ({"text": b"x"}, *rest),
            "info": (*sound[:-1], "success"),
            "endless": ({"text": "x" * 2_000_000}, *rest),
        }.get(fate if len(sound) == 5 or fate not in ("nan", "info") else "none", sound)


class Meeting(Faulty):
    """Is made only while so many others are being made: each leaves a file in a folder, and waits for the rest."""

    def __init__(self, folder: str, others: int):
        super().__init__()
        (Path(folder) / f"{os.getpid()}").touch()
        deadline = time.monotonic() + 20
        while len([*Path(folder).iterdir()]) < others:
            if time.monotonic() > deadline:
                raise ValueError("nobody else is being made")
            time.sleep(0.01)


@dataclass
class Foretold:
    """What a batch must hold."""

    turns: list[list[tuple[int, int]]] = field(default_factory=list)  # of each slot: the level, and its turn
    failures: int = 0
    dropped_turns: int = 0


def foretell(config: Config, batches: int) -> list[Foretold]:
    """By the schedule alone, as long as no environment takes another with it."""
    schedule = Schedule(**config.environment.kwargs)
    (task,) = config.environment.tasks
    foretold = [Foretold() for _ in range(batches)]
    for index in range(config.rollout.n_env):
        seeds = partial(episode_seed, "train", config.seed, task, index)
        for batch, (turns, failures, dropped) in zip(foretold, _slot(schedule, seeds, config.rollout.e_len)):  # noqa: B905
            batch.turns.append(turns)
            batch.failures += failures
            batch.dropped_turns += dropped
    return foretold


def _slot(schedule: Schedule, seeds: Seeds, e_len: int) -> Iterator[tuple[list[tuple[int, int]], int, int]]:
    """The turns that are kept, the failures and the turns that are dropped, batch after batch, without end."""
    number, call = -1, -1  # -1: no episode is under way
    while True:
        kept: list[tuple[int, int]] = []
        mine: list[tuple[int, int]] = []  # of the episode under way
        failures = dropped = 0
        while len(kept) + len(mine) < e_len:
            number, call = (number + 1, 0) if call < 0 else (number, call + 1)
            seed = seeds(number)
            if schedule.fate(seed, call):
                failures, dropped, mine, call = failures + 1, dropped + len(mine), [], -1
            elif call:
                mine.append((seed, call - 1))
                if call == schedule.turns(seed):
                    kept, mine, call = kept + mine, [], -1
        yield kept + mine, failures, dropped
