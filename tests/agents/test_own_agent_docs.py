"""The page on own agents is run as it stands: its files, and its commands on a very small model."""

import importlib.util
import shlex
import sys

import pytest
from helpers import make_tokenizer
from pages import blocks, write_files
from sums import HERMES

from turnwise.cli import main

BLOCKS = blocks("own-agent.md")
COMMANDS = [line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines()]
SMALL = ["steps=1", "rollout.n_env=2", "rollout.group=2", "rollout.max_reply_tokens=4", "update.minibatch=2"]
SMALL += ["evaluation.episodes=1", "evaluation.slots=1", "environment.max_failures=1"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The page's files in a folder of their own."""
    write_files(BLOCKS, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sums", raising=False)  # the tests have one too
    return tmp_path


def test_the_page_has_a_command_for_each_agent(folder):
    assert len(COMMANDS) == 5
    assert {file.name for file in folder.iterdir()} == {
        "sums.py",
        "sums.yaml",
        "my_agent.py",
        "my_function.py",
        "my_loop.py",
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
    patient = ["agent.timeout_s=600"] if "use: openai" in line or "use: langgraph" in line else []
    assert main([kind, *arguments, f"model.path={model}", *patient, *SMALL]) == 0, capsys.readouterr().err
    assert (folder / "runs" / "sums" / "metrics.jsonl").read_text().count("\n") == 1
