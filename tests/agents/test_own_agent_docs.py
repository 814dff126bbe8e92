"""The page on own agents is run as it stands: its files, and its commands on a very small model."""

import importlib.util
import re
import shlex
import sys
from pathlib import Path

import pytest
from helpers import make_tokenizer
from sums import HERMES

from turnwise.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "own-agent.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines()]
SMALL = ["steps=1", "rollout.n_env=2", "rollout.group=2", "rollout.max_reply_tokens=4", "update.minibatch=2"]
SMALL += ["evaluation.episodes=1", "evaluation.slots=1", "environment.max_failures=1"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The page's files in a folder of their own."""
    for _, text in BLOCKS:
        if named := re.match(r"# ([\w.]+)\n", text):
            (tmp_path / named[1]).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sums", raising=False)  # the tests have one too
    return tmp_path


def test_the_page_has_a_command_for_each_agent():
    assert len(COMMANDS) == 4
    assert {name for _, text in BLOCKS for name in re.findall(r"^# ([\w.]+)\n", text)} == {
        "sums.py",
        "sums.yaml",
        "my_agent.py",
        "my_function.py",
        "my_graph.py",
    }


@pytest.mark.parametrize("line", ["turnwise train sums.yaml", *COMMANDS])
def test_the_commands_run(folder, tiny_folder, line, capsys):
    if "langgraph" in line and importlib.util.find_spec("langgraph") is None:
        pytest.skip("langgraph is not installed")
    model = folder / "model"
    model.mkdir()
    for file in tiny_folder.iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    make_tokenizer(HERMES).save_pretrained(model)
    _, kind, *arguments = shlex.split(line.replace("command: python", f"command: {sys.executable}"))
    patient = ["agent.timeout_s=600"] if "agent=" in line else []
    assert main([kind, *arguments, f"model.path={model}", *patient, *SMALL]) == 0, capsys.readouterr().err
    assert (folder / "runs" / "sums" / "metrics.jsonl").read_text().count("\n") == 1
