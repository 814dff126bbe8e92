"""What is not installed is said in one sentence, with what to install."""

import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest

from turnwise.optional import optional

EXTRAS = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize(
    ("adapter", "arguments", "package", "extra"),
    [
        ("textarena:TextArena", {"game": "Wordle-v0"}, "textarena", "textarena"),
        ("reasoning_gym:ReasoningGym", {"dataset": "chain_sum"}, "reasoning_gym", "reasoning-gym"),
        ("openenv:OpenEnv", {"url": "http://127.0.0.1:1"}, "websockets", "openenv"),
        ("textworld:TextWorld", {}, "textworld", "textworld"),
        ("nle:NLE", {}, "nle", "nle"),
    ],
)
def test_an_adapter_without_its_package_says_what_to_install(adapter, arguments, package, extra, monkeypatch):
    module, _, name = adapter.partition(":")
    for loaded in [*sys.modules, package]:
        if loaded.split(".")[0] == package:
            monkeypatch.setitem(sys.modules, loaded, None)  # as if it were not installed
    wanted = re.escape(f"pip install -e '.[{extra}]'")
    with pytest.raises(ValueError, match=f"{package}.* cannot be imported .*{wanted}"):
        getattr(importlib.import_module(f"turnwise.envs.{module}"), name)(**arguments)
    assert extra in EXTRAS


def test_what_is_installed_is_given():
    assert optional("json", "no-extra") is importlib.import_module("json")
