"""The code and the recipes of docs/data.md do what the page says."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import yaml

from turnwise.components import load_object, with_colon
from turnwise.data.arithmetic import LEVELS, Arithmetic
from turnwise.data.samples import to_sample
from turnwise.recipe import parse_config
from turnwise.rewards import Reward
from turnwise.types import Sample

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
CODE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
TREES = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]


def test_the_page_does_what_it_says(capsys: Any, tmp_path: Path, monkeypatch: Any):
    names: dict[str, Any] = {"__name__": "page"}
    monkeypatch.chdir(tmp_path)
    for code in CODE:
        exec(compile(code, "docs/data.md", "exec"), names)
    (printed,) = re.findall(r"```\n(False .*?)```", PAGE, re.DOTALL)
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == printed.splitlines()
    assert len((tmp_path / "arithmetic.jsonl").read_text().splitlines()) == 100


def test_the_recipes_of_the_page_are_read(tmp_path: Path, monkeypatch: Any):
    monkeypatch.syspath_prepend(tmp_path)
    own = "\n".join(code for code in CODE if code.startswith(("class", "def")))
    for name in ("riddles", "rewards"):
        (tmp_path / f"{name}.py").write_text(own)
    recipes = [tree for tree in TREES if "interaction" not in tree]
    assert len(recipes) == 4
    configs = [parse_config({"agent": {"use": "tool"}, "data": {"train": "rows.csv"}, **tree}) for tree in recipes]
    reward = Reward(configs[-1].reward)  # type: ignore[arg-type]  # the last has one
    score = asyncio.run(reward.score(Sample(0, (), ground_truth="42"), [], "It is 42."))
    assert (score.value, score.metrics) == (1.0, {"characters": 9})


def test_the_users_of_the_page_are_there():
    (file,) = (tree for tree in TREES if "interaction" in tree)
    for entry in file["interaction"]:
        config = {**entry["config"], **({"name": entry["name"]} if "name" in entry else {})}
        assert load_object("class_name", with_colon(entry["class_name"]))(config).name


def test_the_row_of_the_page_is_a_sample():
    (text,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    found = to_sample("the page", json.loads(text), 0)
    assert (found.agent, found.tools, found.ground_truth) == ("tool_agent", ("calculator",), "42")


def test_the_made_problems_of_the_page_are_made():
    for level in LEVELS:
        for style in ("expressions", "stories"):
            question = next(Arithmetic(level, style).rows("test"))["question"]  # type: ignore[arg-type]
            assert question in PAGE or (style == "stories" and level in (2, 4))
