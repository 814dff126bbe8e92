"""Training without a critic: what there is then, that it learns, and that it goes on as if it had not stopped."""

import asyncio
import json
import math
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from helpers import segment, turn
from safetensors.torch import load_file

from turnwise.advantages.gae import DualGAE
from turnwise.advantages.gigpo import GiGPO
from turnwise.advantages.grpo import GRPO
from turnwise.advantages.rloo import RLOO
from turnwise.advantages.turn import TurnGAE
from turnwise.batch import Batch, Estimate, pack
from turnwise.config import Config, KLConfig, UpdateConfig
from turnwise.engines.local import LocalEngine
from turnwise.metrics import measure_credit
from turnwise.policy import Policy
from turnwise.recipe import parse_config
from turnwise.train import Training, train
from turnwise.types import Sampling, Segment
from turnwise.update import Optimizers, assign_credit, update

UPDATE = UpdateConfig(actor_lr=3e-3, minibatch=1000)


def play(policy: Policy, step: int, levels: int = 4, episodes: int = 8) -> list[Segment]:
    """One reply of two tokens an episode; on even levels low ids pay, on odd ones high ids."""
    engine = LocalEngine(policy.actor, frozenset(), nullcontext())
    engine.load(policy.actor.state_dict(), step)

    async def one(level: int, number: int) -> Segment:
        prompt = [level, 10 + level, 20 + level]
        reply = await engine.generate(prompt, Sampling(2, seed=1000 * step + 10 * level + number))
        paid = sum((token < 128) == (level % 2 == 0) for token in reply.token_ids)
        return segment(turn(prompt, reply.token_ids, float(paid)), seed=level, slot=number)

    async def all_of_them() -> list[Segment]:
        return await asyncio.gather(*(one(level, number) for level in range(levels) for number in range(episodes)))

    return asyncio.run(all_of_them())


def on_policy(policy: Policy, segments: list[Segment]) -> Batch:
    """The batch with log-probs of the policy itself."""
    batch = pack(segments)
    return replace(batch, logprobs=policy.logprobs(batch, 10_000))


@pytest.mark.parametrize("estimator", [GRPO(), RLOO()], ids=repr)
def test_it_learns(tiny, estimator):
    policy = Policy(tiny[0], "none", reference=False)
    config = UpdateConfig(actor_lr=1e-2, minibatch=16, entropy=0)
    optimizers = Optimizers(policy, config)
    returns = []
    for step in range(20):
        segments = play(policy, step)
        returns.append(sum(one.outcome.episode_return for one in segments) / len(segments))
        batch = on_policy(policy, segments)
        credit = assign_credit(batch, policy.score(batch, 10_000), estimator, 0.0)
        figures = update(policy, optimizers, batch, credit, config, KLConfig(), step)
        assert not any(name.startswith("critic/") for name in {**figures, **measure_credit(batch, credit)})
    assert returns[0] < 1.2
    assert sum(returns[-4:]) / 4 > 1.6  # of 2


def test_there_is_no_critic_at_all(tiny):
    policy = Policy(tiny[0], "none", reference=True)
    assert policy.critic_parameters() == []
    assert {name.split(".")[0] for name, _ in policy.named_parameters()} == {"actor"}
    optimizers = Optimizers(policy, UPDATE)
    assert list(optimizers.named()) == ["actor"]
    batch = pack([segment(turn([1, 2], [3, 4])), segment(turn([1, 2], [5]), end="cut", final=[7])])
    scores = policy.score(batch, 100)
    assert scores.values.tolist() == [0.0] * 3 and scores.bootstraps.tolist() == [0.0] * 2
    assert scores.reference is not None


def test_the_actor_learns_the_same_beside_a_critic_with_a_trunk_of_its_own(tiny):
    """The same advantages with and without a critic: the same weights, bit for bit."""
    trained = []
    for kind in ("none", "separate"):
        policy = Policy(deepcopy(tiny[0]), kind, reference=False)
        batch = on_policy(policy, play(policy, 0))
        credit = assign_credit(batch, policy.score(batch, 10_000), GRPO(), 0.0)
        update(policy, Optimizers(policy, UPDATE), batch, credit, UPDATE, KLConfig(), 0)
        trained.append(policy.actor.state_dict())
    assert all(torch.equal(trained[0][name], trained[1][name]) for name in trained[0])


@pytest.mark.parametrize("estimator", [GRPO(), GRPO(divide_by_std=False), RLOO(), GiGPO(omega=0)], ids=repr)
@pytest.mark.parametrize(
    "rewards", [([-0.1] * 10, [0.9, -1.1, *[-0.1] * 8]), ([100.1], [100, 0.1]), ([0.9], [1, -0.1])]
)
def test_episodes_that_return_the_same_by_other_rewards_tie(tiny, estimator, rewards):
    policy = Policy(tiny[0], "none", reference=False)
    batch = pack([segment(*(turn([1, 2], [3], r) for r in one), slot=slot) for slot, one in enumerate(rewards)])
    credit = assign_credit(batch, policy.score(batch, 10_000), estimator, 0.0)
    assert not credit.advantages.any()


class Scribbling(DualGAE):
    def __call__(self, streams):
        for x in (streams.rewards, streams.values, streams.step_ends, streams.segment_ends):
            x.zero_()
        return Estimate(torch.zeros(len(streams.values)), torch.zeros(len(streams.values)))


def test_an_estimator_may_write_into_what_it_is_given(tiny):
    policy = Policy(tiny[0], "shared", reference=False)
    batch = pack([segment(turn([1, 2], [3, 4]), turn([1, 5], [3]))])
    scores = policy.score(batch, 100)
    scores = replace(scores, values=scores.values + 1)
    ends = batch.step_ends.clone(), batch.segment_ends.clone()
    credit = assign_credit(batch, scores, Scribbling(), 0.0)
    assert credit.old_values.any()
    assert torch.equal(batch.step_ends, ends[0]) and torch.equal(batch.segment_ends, ends[1])


# -- what an estimator answers


class Answer:
    """An estimator of somebody else."""

    def __init__(self, answer: Any, critic: bool = True):
        self.answer, self.critic = answer, critic
        self.groups = self.whiten = False

    def __call__(self, _: Any) -> Any:
        return self.answer


THREE = torch.zeros(3)


@pytest.mark.parametrize(
    ("estimator", "words"),
    [
        (Answer((THREE, THREE)), "Answer answers with a tuple; let it be a turnwise.batch.Estimate"),
        (Answer(Estimate(THREE)), "Answer has critic=True, but answers without returns"),
        (Answer(Estimate(THREE, THREE), False), "Answer has critic=False, but answers with returns"),
        (Answer(Estimate(THREE / 0, THREE)), "Answer answers with advantages some of which are no finite numbers"),
        (Answer(Estimate(THREE.numpy(), THREE)), "answers with advantages in a ndarray; make it a tensor"),
        (Answer(Estimate(torch.zeros(2), THREE)), r"advantages of shape \[2\]; make it \[3\]"),
        (Answer(Estimate(THREE, THREE, torch.ones(1, 3))), r"targets of shape \[1, 3\]; make it \[3\]"),
        (Answer(Estimate(THREE, THREE, torch.ones(3).long())), "torch.int64, .* let them be of torch.bool"),
        (Answer(Estimate(THREE, THREE, THREE.bool())), "torch.bool, 0 of which are set; .* one at least True"),
    ],
)
def test_what_does_not_fit_is_refused(tiny, estimator, words):
    policy = Policy(tiny[0], "shared", reference=False)
    batch = pack([segment(turn([1, 2], [3, 4, 5]))])
    with pytest.raises(ValueError, match=words):
        assign_credit(batch, policy.score(batch, 100), estimator, 0.0)


@pytest.mark.parametrize(("name", "places"), [("actor", ()), ("critic", ("values",)), ("critic", ("bootstraps",))])
def test_a_model_that_broke_is_named_and_not_the_estimator(tiny, name, places):
    policy = Policy(tiny[0], "shared", reference=False)
    batch = pack([segment(turn([1, 2], [3, 4, 5]), end="cut")])
    scores = policy.score(batch, 100)
    scores = replace(scores, **{place: getattr(scores, place) / 0 for place in places})
    batch = batch if places else replace(batch, logprobs=batch.logprobs * math.nan)
    with pytest.raises(FloatingPointError, match=f"the {name} answers with .* not finite: lower update.{name}_lr"):
        assign_credit(batch, scores, DualGAE(), 0.0)


def test_whitening_is_as_the_estimator_has_it_unless_told_otherwise(tiny):
    policy = Policy(tiny[0], "shared", reference=False)
    batch = pack([segment(turn([1, 2], [3, 4, 5], float(n)), slot=n) for n in range(3)])
    scores = policy.score(batch, 100)
    for estimator in (DualGAE(), GRPO()):
        variance = {w: float(assign_credit(batch, scores, estimator, 0.0, w).advantages.var()) for w in (True, False)}
        assert variance[True] == pytest.approx(1, abs=1e-4) != pytest.approx(variance[False], abs=1e-2)
        left = float(assign_credit(batch, scores, estimator, 0.0).advantages.var())
        assert left == variance[estimator.whiten]


# -- where the critic learns


def taught(tiny: Any, anchor: Any, **changes: Any) -> tuple[Any, Any, dict[str, float], dict[str, torch.Tensor]]:
    """A batch, its credit, the figures of one step, and the gradient of the critic."""
    policy = Policy(deepcopy(tiny[0]), "separate", reference=False)
    with torch.no_grad():
        policy.value_head.weight.normal_(std=0.2, generator=torch.manual_seed(1))
    sizes = [(1, 4), (3, 2, 5), (1,)]
    segments = [segment(*(turn([n, 9], range(3, 3 + s), s / 4) for s in of), slot=n) for n, of in enumerate(sizes)]
    batch = on_policy(policy, segments)
    credit = assign_credit(batch, policy.score(batch, 10_000), TurnGAE(anchor=anchor), 0.0)
    credit = replace(credit, **changes)
    gradients: dict[str, torch.Tensor] = {}

    class Keep(Optimizers):
        def step(self, actor: bool = True) -> dict[str, float]:
            gradients.update({n: p.grad.clone() for n, p in policy.named_parameters() if "value" in n or "trunk" in n})
            return {}

    figures = update(policy, Keep(policy, UPDATE), batch, credit, UPDATE, KLConfig(), 0)
    return batch, credit, figures | measure_credit(batch, credit), gradients


@pytest.mark.parametrize("anchor", ["first", "last"])
def test_returns_off_the_targets_never_matter(tiny, anchor):
    _, credit, figures, gradients = taught(tiny, anchor)
    other = torch.where(credit.targets, credit.returns, 77.0)
    _, _, same_figures, same = taught(tiny, anchor, returns=other)
    assert figures == same_figures
    assert all(torch.equal(gradients[name], same[name]) for name in gradients)
    values, returns = credit.old_values[credit.targets], credit.returns[credit.targets]
    assert figures["critic/loss"] == pytest.approx(float(0.5 * ((values - returns) ** 2).mean()), rel=1e-4)
    assert figures["critic/return"] == pytest.approx(float(returns.mean()), rel=1e-5)
    expected = (values - returns).mean()  # of the bias: each target weighs the same, be its turn long or of one token
    assert gradients["value_head.bias"].item() == pytest.approx(float(expected), rel=1e-4)


def test_advantages_are_whitened_turn_by_turn(tiny):
    _, credit, _, _ = taught(tiny, "first")
    of_turns = credit.advantages[credit.targets]
    assert of_turns.mean().item() == pytest.approx(0, abs=1e-5)
    assert of_turns.var().item() == pytest.approx(1, abs=1e-4)


def test_a_weight_of_first_tokens_is_refused_where_the_estimator_names_the_targets(tiny):
    policy = Policy(deepcopy(tiny[0]), "separate", reference=False)
    batch = on_policy(policy, [segment(turn([1, 2], [3, 4], 1.0))])
    credit = assign_credit(batch, policy.score(batch, 100), TurnGAE(), 0.0)
    config = UPDATE.model_copy(update={"first_token_weight": 2.0})
    with pytest.raises(ValueError, match=r"update.first_token_weight=2.0 does nothing"):
        update(policy, Optimizers(policy, config), batch, credit, config, KLConfig(), 0)


# -- a run


class Threes(gymnasium.Env[Any, Any]):
    """Ends after three turns; the reward is how long the last reply was."""

    action_space = gymnasium.spaces.Text(100)
    actions = ("left", "right")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.turn = 0
        return "turn 0", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.turn += 1
        return f"turn {self.turn}", float(action == "left"), self.turn == 3, False, {}


def run_config(folder: Path, model: Path, **tree: Any) -> Config:
    return parse_config(
        {
            "run": str(folder),
            "steps": 4,
            "model": {"path": str(model), "precision": "fp32", "device": "cpu", "critic": "none"},
            "environment": {"id": "test_criticless:Threes", "workers": "inline", "reward": "native"},
            "advantage": {"use": "reinforce_plus_plus"},
            "rollout": {"n_env": 4, "episodes": 1, "group": 2, "max_reply_tokens": 5, "max_prompt_tokens": 400},
            "update": {"minibatch": 3, "actor_lr": 1e-3},
            **tree,
        }
    )


def figures(folder: Path) -> list[dict[str, Any]]:
    """All metrics but the times."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not key.startswith("time/")} for line in lines]


def test_a_resumed_run_ends_as_if_it_had_not_stopped(tiny_folder, tmp_path):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train(run_config(whole, tiny_folder))
    training = Training(run_config(stopped, tiny_folder), resume=False)
    training.step()
    training.step()
    training.collector.close()
    train(run_config(stopped, tiny_folder), resume=True)
    assert figures(stopped) == figures(whole)
    one, other = (load_file(folder / "model" / "model.safetensors") for folder in (whole, stopped))
    assert one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)
    assert [line["phase"] for line in figures(whole)] == ["train"] * 4  # no warm-up
    assert not any(key.startswith("critic/") for line in figures(whole) for key in line)
    assert not any(key.startswith("groups/p") for line in figures(whole) for key in line)  # it compares none
