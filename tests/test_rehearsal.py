"""What an estimator would do wrong with every batch is told before a run begins."""

from pathlib import Path

import pytest
import torch

from turnwise.batch import Estimate, Streams
from turnwise.components import COMPONENTS, Component
from turnwise.config import Config
from turnwise.recipe import load_config, parse_config
from turnwise.rehearsal import rehearse
from turnwise.train import train


@pytest.mark.parametrize("name", COMPONENTS["advantage"])
def test_all_that_ship_pass_and_would_not_if_they_said_otherwise_whether_they_read_a_critic(name):
    made = Component(use=name).make("advantage")
    rehearse(made, Config())
    other = type("Other", (type(made),), {"critic": not made.critic})()
    with pytest.raises(ValueError, match=f"Other has critic={other.critic}, but answers"):
        rehearse(other, Config())


class Turns:
    """Credit for each turn, where each token should have one."""

    critic = groups = whiten = False

    def __call__(self, streams: Streams) -> Estimate:
        return Estimate(torch.zeros(int(streams.step_ends.sum())))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            ["advantage.use=test_rehearsal:Turns", "model.critic=none", "rollout.episodes=1", "rollout.e_len=8"],
            r"advantage: Turns answers with advantages of shape \[4\]; make it \[8\]",
        ),
        (["advantage.use=turn_gae", "update.first_token_weight=2"], "update.first_token_weight=2.0 does nothing"),
    ],
)
def test_a_run_does_not_begin_with_one_that_does_not(keys, words, tmp_path: Path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text('environment: {id: "helpers:Counter"}\nrollout: {n_env: 16}\n')
    config = load_config(recipe, [f"run={tmp_path / 'run'}", *keys])
    with pytest.raises(ValueError, match=words):
        train(config)
    assert not (tmp_path / "run").exists()


class Reading:
    """Looks for what only episodes of its own task have, or is wrong everywhere."""

    critic = groups = whiten = False

    def __init__(self, fault: str):
        self.fault = fault

    def __call__(self, streams: Streams) -> Estimate:
        (turn, *_) = streams.segments[0].turns
        if self.fault == "key":
            streams.segments[0].outcome.figures["environment/depth"]  # type: ignore[union-attr]
        elif self.fault == "text":
            int(turn.observation.text)
        else:
            undefined  # type: ignore[name-defined]  # noqa: B018, F821
        raise AssertionError


@pytest.mark.parametrize("fault", ["key", "text"])
def test_what_only_real_episodes_have_is_not_asked_of_invented_ones(fault):
    told = rehearse(Reading(fault), Config())
    assert "Reading fails on 2 invented episodes" in told and "test_rehearsal.py, line" in told


def test_what_is_wrong_with_any_episode_is_refused():
    with pytest.raises(ValueError, match=r"Reading fails on 2 invented episodes \(NameError"):
        rehearse(Reading("name"), Config())


class Grouped:
    """Compares eight at a time, and knows the tasks."""

    critic = whiten = False
    groups = True

    def __call__(self, streams: Streams) -> Estimate:
        assert {segment.task for segment in streams.segments} <= {"one", "other"}
        streams.rewards[streams.segment_ends].view(-1, 8)
        return Estimate(torch.zeros(len(streams.rewards)))


class Broken(Grouped):
    def __call__(self, streams: Streams) -> Estimate:
        raise RuntimeError("weights")


def test_an_estimator_is_tried_on_a_group_of_the_recipes_own_task():
    tasks = {"environment": {"tasks": {"one": {}, "other": {}}}, "rollout": {"n_env": 16, "episodes": 1, "group": 8}}
    rehearse(Grouped(), parse_config(tasks))
    with pytest.raises(ValueError, match=r"advantage: Broken fails on 8 invented episodes \(RuntimeError: weights"):
        rehearse(Broken(), parse_config(tasks))
