"""Killed and resumed gives the same run, bit for bit."""

import itertools
import json
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from helpers import play_config
from safetensors.torch import load_file
from test_cli import recipe, run, start, wait_for_lines  # noqa: F401  (a fixture)

from turnwise.recipe import load_config
from turnwise.run import Run


def figures(folder: Path) -> list[dict[str, Any]]:
    """All metrics but the times."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not key.startswith("time/")} for line in lines]


def test_a_kill_while_metrics_are_cut_back_loses_none(tmp_path, monkeypatch):
    run = Run(play_config(run=str(tmp_path)), resume=False)
    for number in range(3):
        run.log({"step": number})
    before = run.metrics.read_text()

    def die(path: Path, data: bytes) -> None:
        path.open("w").close()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "write_bytes", die)
        run.forget_after(2)
    assert run.metrics.read_text() == before
    run.forget_after(2)
    assert run.metrics.read_text() == before[: before.index('{"step": 2')]


@pytest.mark.parametrize("harm", [Path.unlink, lambda file: file.write_bytes(b"[{")])
def test_a_lost_batch_of_the_warm_up_is_one_sentence(recipe: Path, tmp_path: Path, capsys: Any, harm: Any) -> None:  # noqa: F811
    assert run("train", recipe, "warmup.w_epoch=2", "warmup.w_iter=1", "steps=0") == 0
    made = Run(load_config(tmp_path / "run" / "config.yaml"), resume=True)
    assert len(made.kept_warmup(2)) >= 2
    harm(tmp_path / "run" / "warmup" / "00001.json")
    with pytest.raises(ValueError, match=r"00001\.json, a batch of .* missing or damaged; delete .*run to begin anew$"):
        made.kept_warmup(2)


def kill_after(metrics: Path, lines: int, delay_s: float, *arguments: str | Path) -> None:
    """Start a run, and kill it some time after it wrote so many lines; it must not be done by then."""
    process = start(metrics.parents[1] / "out", *arguments)
    wait_for_lines(metrics, lines)
    time.sleep(delay_s)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("memory", "steps", "kills", "more"),
    [("window", 10, 5, []), ("note", 6, 2, ["checkpoint.every=2", "warmup.w_epoch=3", "evaluation.every=2"])],
)
def test_a_run_killed_at_random_moments_ends_as_if_it_had_not_been(
    recipe: Path,  # noqa: F811
    memory: str,
    steps: int,
    kills: int,
    more: list[str],
    tmp_path: Path,
) -> None:
    common = [
        f"steps={steps}",
        f"memory.use={memory}",
        "rollout.n_env=3",
        "rollout.e_len=4",
        "update.minibatch=6",
        *more,
    ]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert run("train", recipe, *common, f"run={whole}") == 0
    rng = random.Random(memory)
    for number, lines in enumerate(sorted(rng.sample(range(steps), kills))):
        resume = ["--resume"] if number else []
        # Nothing is written before the first line but the folder itself: wait for that line at least.
        kill_after(
            killed / "metrics.jsonl",
            max(1, lines),
            rng.uniform(0, 0.2),
            "train",
            recipe,
            *common,
            f"run={killed}",
            *resume,
        )
    assert run("train", recipe, *common, f"run={killed}", "--resume") == 0
    assert figures(killed) == figures(whole)
    one, other = (load_file(folder / "model" / "model.safetensors") for folder in (whole, killed))
    assert one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)


def test_an_elastic_run_goes_on_after_a_kill(recipe: Path, tmp_path: Path) -> None:  # noqa: F811
    """Not as if nothing had happened: what was under way is asked anew. No turn is missing for that."""
    folder = tmp_path / "elastic"
    common = ["steps=6", "rollout.mode=elastic", "rollout.n_env=3", "rollout.e_len=4", "update.minibatch=6"]
    kill_after(folder / "metrics.jsonl", 3, 0.0, "train", recipe, *common, f"run={folder}")
    assert run("train", recipe, *common, f"run={folder}", "--resume") == 0
    steps = [line for line in figures(folder) if line.get("phase") == "train"]
    assert [line["step"] for line in steps] == [*range(1, 7)]
    turns = [line["turns"] for line in steps]
    assert {after - before for before, after in itertools.pairwise(turns)} == {12}
    assert all(0 <= line["turns/older_tokens"] < 1 for line in steps)
    assert any(line["turns/older_tokens"] for line in steps)
