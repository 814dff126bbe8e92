"""The README's own environment can be trained on, with the README's own recipe."""

import re
import sys
from pathlib import Path
from typing import Any

from turnwise.cli import main

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_environment_of_the_readme_trains(tiny_folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    code, recipe = (re.search(rf"```{kind}\n(.*?)```", README, re.DOTALL) for kind in ("python", "yaml"))
    assert code and recipe
    (tmp_path / "guess.py").write_text(code[1])
    (tmp_path / "guess.yaml").write_text(recipe[1])
    monkeypatch.syspath_prepend(tmp_path)
    small = [
        "rollout.n_env=2",
        "rollout.e_len=6",
        "rollout.max_reply_tokens=4",
        "update.minibatch=12",
        "warmup.w_epoch=0",
    ]
    run = f"run={tmp_path / 'run'}"
    assert main(["train", str(tmp_path / "guess.yaml"), f"model.path={tiny_folder}", run, "steps=1", *small]) == 0
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") == 1
    sys.modules.pop("guess", None)
