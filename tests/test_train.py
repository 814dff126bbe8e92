"""What the loop does between its parts."""

from types import SimpleNamespace
from typing import Any

import pytest
from helpers import play_config

from turnwise.progress import Progress
from turnwise.train import Training


@pytest.mark.parametrize(("kl", "factor"), [(0.0, 0.98), (0.05, 0.98), (0.1, 1.0), (0.11, 1.01), (0.5, 1.02)])
def test_an_adaptive_coefficient_follows_the_kl_by_the_turns_of_the_batch(kl: float, factor: float) -> None:
    config = play_config("helpers:Ladder", kl={"schedule": "adaptive", "target": 0.1, "horizon": 100})
    run: Any = SimpleNamespace(config=config, progress=Progress(kl_coefficient=0.5))
    Training.adapt_kl(run, kl, turns=10)
    assert run.progress.kl_coefficient == pytest.approx(0.5 * factor)


@pytest.mark.parametrize("turns", [100, 101, 10_000])
def test_a_batch_of_more_turns_than_the_horizon_changes_it_by_the_error_and_no_more(turns: int) -> None:
    config = play_config("helpers:Ladder", kl={"schedule": "adaptive", "target": 0.1, "horizon": 100})
    run: Any = SimpleNamespace(config=config, progress=Progress(kl_coefficient=0.5))
    Training.adapt_kl(run, 0.0, turns)
    assert run.progress.kl_coefficient == pytest.approx(0.4)
