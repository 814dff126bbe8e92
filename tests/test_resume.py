"""Killed and resumed gives the same run, bit for bit."""

import json
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from test_cli import recipe, start, wait_for_lines  # noqa: F401  (a fixture)

STEPS = 16  # after 4 lines of warm-up


def figures(folder: Path) -> list[dict[str, Any]]:
    """All metrics but the times."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not key.startswith("time/")} for line in lines]


def finish(*arguments: str | Path) -> None:
    process = start(*arguments)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0, out


def kill_after(metrics: Path, lines: int, delay_s: float, *arguments: str | Path) -> None:
    """Start a run, and kill it some time after it wrote so many lines; it must not be done by then."""
    process = start(*arguments)
    wait_for_lines(metrics, lines)
    time.sleep(delay_s)
    process.kill()
    process.wait()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(("memory", "kills"), [("window", 5), ("note", 2)])
def test_a_run_killed_at_random_moments_ends_as_if_it_had_not_been(
    recipe: Path,  # noqa: F811
    memory: str,
    kills: int,
    tmp_path: Path,
) -> None:
    common = [f"steps={STEPS}", f"memory.use={memory}", "rollout.n_env=3", "rollout.e_len=4", "update.minibatch=6"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish("train", recipe, *common, f"run={whole}")
    luck = random.Random(memory)
    for number, lines in enumerate(sorted(luck.sample(range(STEPS), kills))):
        resume = ["--resume"] if number else []
        # Nothing is written before the first line but the folder itself: wait for that line at least.
        kill_after(
            killed / "metrics.jsonl",
            max(1, lines),
            luck.uniform(0, 0.2),
            "train",
            recipe,
            *common,
            f"run={killed}",
            *resume,
        )
    finish("train", recipe, *common, f"run={killed}", "--resume")
    assert figures(killed) == figures(whole)
    one, other = (load_file(folder / "model" / "model.safetensors") for folder in (whole, killed))
    assert one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)
