"""Killed and resumed gives the same run, bit for bit."""

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from test_cli import recipe, start  # noqa: F401  (a fixture)

STEPS = 8


def figures(folder: Path) -> list[dict[str, Any]]:
    """All metrics but the times."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not key.startswith("time/")} for line in lines]


def finish(*arguments: str | Path) -> None:
    process = start(*arguments)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0, out


@pytest.mark.parametrize("memory", ["window", "note"])
def test_a_run_killed_at_random_moments_ends_as_if_it_had_not_been(recipe: Path, memory: str, tmp_path: Path) -> None:  # noqa: F811
    common = [f"steps={STEPS}", f"memory.use={memory}", "rollout.n_env=3", "rollout.e_len=4", "update.minibatch=6"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    before = time.monotonic()
    finish("train", recipe, *common, f"run={whole}")
    duration = time.monotonic() - before
    luck = random.Random(memory)
    kills = 0
    while kills < 5:
        process = start(
            "train", recipe, *common, f"run={killed}", *(["--resume"] if (killed / "config.yaml").exists() else [])
        )
        try:
            process.wait(timeout=luck.uniform(0.45, 1.0) * duration)
            break  # it was faster than its killer, and is done
        except Exception:
            process.kill()
            process.wait()
            kills += 1
    assert kills >= 3
    if process.returncode != 0:
        finish("train", recipe, *common, f"run={killed}", "--resume")
    assert figures(killed) == figures(whole)
    one, other = (load_file(folder / "model" / "model.safetensors") for folder in (whole, killed))
    assert one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)
