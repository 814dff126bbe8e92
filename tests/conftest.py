"""Tests share the makers in helpers.py, keep to one core, and try the same examples in every run."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: its tensors here are tiny
sys.path.insert(0, str(Path(__file__).parent))
settings.register_profile("turnwise", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("turnwise")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder with a very small language model of random weights and a tokenizer of bytes."""
    from helpers import make_model

    folder = tmp_path_factory.mktemp("tiny")
    make_model(folder)
    return folder


@pytest.fixture
def tiny(tiny_folder: Path):
    """The model of that folder, fresh for each test, and its tokenizer."""
    from turnwise.config import ModelConfig
    from turnwise.models import open_model

    return open_model(ModelConfig(path=str(tiny_folder), precision="fp32", device="cpu"))


@pytest.fixture(autouse=True)
def collectors_are_closed(monkeypatch: pytest.MonkeyPatch):
    """An episode that waits for a batch that never comes is let go before its event loop is."""
    from turnwise.collector import Collector

    made: list[Collector] = []
    begin = Collector.__init__

    def remember(self: Collector, *arguments: object, **keywords: object) -> None:
        begin(self, *arguments, **keywords)  # type: ignore[arg-type]
        made.append(self)

    monkeypatch.setattr(Collector, "__init__", remember)
    yield
    for collector in made:
        collector.close()


@pytest.fixture(autouse=True)
def failures_are_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    from turnwise import slot

    monkeypatch.setattr(slot, "_LONGEST_PAUSE_S", 0.0)


@pytest.fixture(params=["kernels", "modules"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Lines are read by our own kernels, or by the modules of transformers."""
    from turnwise import fused

    if request.param == "modules":
        monkeypatch.setattr(fused, "can_read", lambda trunk: False)
    return request.param
