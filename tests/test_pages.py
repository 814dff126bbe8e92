"""Pages name what there is: keys, files and figures."""

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from turnwise.cli import main
from turnwise.components import Component
from turnwise.config import Config

ROOT = Path(__file__).parents[1]
PAGES = {file.name: file.read_text() for file in [*ROOT.glob("*.md"), *sorted((ROOT / "docs").glob("*.md"))]}
GROUPS = {
    name: kinds
    for name, field in Config.model_fields.items()
    if (kinds := [kind for kind in get_args(field.annotation) or [field.annotation] if hasattr(kind, "model_fields")])
    and not any(issubclass(kind, Component) for kind in kinds)
}
# What only some runs count: agents, scorers, estimators without a critic, tracers.
SELDOM = {"groups/played", "groups/useless", "tools/...", "limits/...", "reward/...", "calls/unreadable", "traces/lost"}
SELDOM |= {"environment/...", "tokenization/mismatch", "tokenization/mismatch_characters", "kl/action", "kl/action_k3"}


@pytest.mark.parametrize("page", PAGES)
def test_keys_are_those_of_the_configuration(page):
    named = re.findall(rf"`({'|'.join(GROUPS)})\.(?!py`)([a-z_]+)\b(?!\.md)", PAGES[page])
    assert [f"{group}.{key}" for group, key in named if not any(key in one.model_fields for one in GROUPS[group])] == []


def test_pages_do_name_keys():
    assert len(re.findall(rf"`({'|'.join(GROUPS)})\.[a-z_]+", "".join(PAGES.values()))) > 50


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    folder = ROOT if (ROOT / page).is_file() else ROOT / "docs"
    links = re.findall(r"\]\((?!http)([^)#\s]+)(?:#[\w-]+)?\)", PAGES[page])
    assert [link for link in links if not (folder / link).exists()] == []


def test_the_design_says_what_every_file_is_for():
    named = set(re.findall(r"`(\w+)\.py`", PAGES["design.md"]))
    files = {file.stem for file in (ROOT / "src" / "turnwise").glob("[a-z]*.py")}
    assert files - named == set()


def test_every_figure_of_a_run_is_explained_and_no_other(tiny_folder: Path, tmp_path: Path, capsys: Any):
    recipe = {
        "run": str(tmp_path / "run"),
        "steps": 1,
        "model": {"path": str(tiny_folder), "precision": "fp32", "device": "cpu"},
        "environment": {
            "id": "turnwise.envs.frozenlake:FrozenLakeText",
            "workers": "inline",
            "tasks": {"TASK": {"length": 2}},
        },
        "rollout": {"n_env": 2, "e_len": 2, "max_reply_tokens": 4},
        "update": {"minibatch": 4},
        "warmup": {"w_epoch": 1, "w_iter": 1},
        "evaluation": {"every": 1, "episodes": 2, "slots": 2},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    assert main(["train", str(tmp_path / "recipe.yaml")]) == 0, capsys.readouterr().err
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    logged = {name for line in lines for name in json.loads(line)} - {"phase", "step"}
    _, _, section = PAGES["training.md"].partition("\n## Figures\n")
    rows = "\n".join(line for line in section.partition("\n## ")[0].splitlines() if line.startswith("|"))
    explained = {name for name in re.findall(r"`([^`]+)`", rows) if "." not in name.replace("...", "")}
    assert explained - SELDOM == logged
    assert explained >= SELDOM
