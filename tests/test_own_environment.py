"""The page on own environments is run as it stands: its files, its snippet and its commands."""

import shlex
import sys

import pytest
from pages import blocks, write_files

from turnwise.cli import main

BLOCKS = blocks("own-environment.md")
SMALL = ["rollout.n_env=2", "rollout.e_len=4", "rollout.max_reply_tokens=4", "update.minibatch=8", "warmup.w_epoch=0"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The page's files in a folder of their own."""
    write_files(BLOCKS, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("treasure", "guided", "deeds"):
        sys.modules.pop(name, None)


def test_the_page_holds_what_it_promises(folder):
    assert {file.name for file in folder.iterdir()} == {"treasure.py", "guided.py", "deeds.py", "treasure.yaml"}
    assert len((folder / "treasure.py").read_text().splitlines()) <= 31


def test_the_snippet_runs(folder, capsys):
    (snippet,) = (text for kind, text in BLOCKS if kind == "python" and not text.startswith("#"))
    exec(compile(snippet, "own-environment.md", "exec"), {})
    assert "You stand on stone" in capsys.readouterr().out


def test_seeds_decide_and_ends_are_what_the_page_says(folder):
    from guided import Guided  # pyright: ignore[reportMissingImports]

    game = Guided()
    assert len({game.reset(seed=seed)[0]["text"] for seed in range(20)}) > 4
    for seed in range(20):
        game.reset(seed=seed)
        while True:
            *_, terminated, truncated, info = game.step(game.expert())
            if terminated or truncated:
                break
        assert (terminated, truncated, info["success"]) == (True, False, True)
    game.reset(seed=1)
    assert [game.step("left")[2:4] for _ in range(20)][-1] == (False, True)


def test_the_commands_run(folder, capsys):
    commands = [line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines() if "turnwise" in line]
    assert len(commands) == 5
    for line in commands:
        _, kind, *arguments = shlex.split(line)
        extra = SMALL if kind == "train" else ["evaluation.episodes=2", "evaluation.slots=2"]
        assert main([kind, *arguments, *extra]) == 0, capsys.readouterr().err
    assert (folder / "runs" / "treasure" / "metrics.jsonl").read_text().count("\n") == 2
    assert "expert" in capsys.readouterr().out
