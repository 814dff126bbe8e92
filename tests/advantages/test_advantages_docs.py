"""The page on estimators says of each what its code says, and its own estimator works."""

import re
import sys
from pathlib import Path
from typing import Any

from helpers import segment, streams_of, turn

from turnwise.components import COMPONENTS
from turnwise.recipe import parse_config

PAGE = (Path(__file__).parents[2] / "docs" / "advantages.md").read_text()
ROWS = re.findall(r"^\| `(\w+)`.*?\|.*?\| (yes|no) \| (yes|no) \| (yes|no) \|", PAGE, re.MULTILINE)


def test_the_table_holds_every_estimator_with_what_it_needs():
    assert {name for name, *_ in ROWS} == set(COMPONENTS["advantage"])
    for name, *needs in ROWS:
        critic, groups, whitened = (need == "yes" for need in needs)
        model = {"critic": "separate" if critic else "none"}
        rollout = {"episodes": 1, "group": 2 if groups else 1}
        tree = {"advantage": {"use": name}, "model": model, "rollout": rollout, "kl": {"reward": 0}}
        estimator = parse_config(tree).advantage.make("advantage")
        assert (estimator.critic, estimator.groups, estimator.whiten) == (critic, groups, whitened)


def test_the_estimator_of_the_page_works(tmp_path: Path, monkeypatch: Any) -> None:
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert code
    (tmp_path / "my.py").write_text(code[1])
    monkeypatch.syspath_prepend(tmp_path)
    tree = {"advantage": {"use": "my:AboveAverage", "share": 0.5}, "model": {"critic": "none"}}
    config = parse_config({**tree, "rollout": {"episodes": 1}})
    streams = streams_of([segment(turn([1], [2, 3], 1.0)), segment(turn([1], [2], -1.0))], [0.0] * 3, [0.0] * 2)
    assert config.advantage.make("advantage")(streams).advantages.tolist() == [0.5, 0.5, -0.5]
    sys.modules.pop("my", None)
