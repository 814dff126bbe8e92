"""Adapters over one frozen model: who learns, who does not, and what is left of a run."""

import asyncio
import json
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
import yaml
from helpers import segment, turn
from peft import PeftModel
from safetensors.torch import load_file
from test_cli import recipe, refused, run  # noqa: F401  (a fixture)
from test_policy import assert_same, learn, make_segments, opinions
from torch import Tensor
from transformers import AutoModelForCausalLM

from turnwise.batch import Batch, pack
from turnwise.config import LoRAConfig
from turnwise.engines.local import LocalEngine
from turnwise.engines.weights import WeightsFolder
from turnwise.lanes import Lanes
from turnwise.lora import Adapters
from turnwise.policy import Policy, Scores
from turnwise.recipe import load_config
from turnwise.train import Training
from turnwise.types import Sampling

SMALL = LoRAConfig(rank=4, alpha=8.0)


def adapted(model: Any, critic: str = "separate", learnt: bool = True) -> Policy:
    """A policy with adapters, which have learnt something unless they are to be new."""
    model = deepcopy(model)
    names = ["actor", "critic"] if critic == "separate" else ["actor"]
    policy = Policy(model, critic, True, adapters=Adapters(model, names, SMALL, seed=0))
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in [*policy.actor_parameters(), *policy.critic_parameters()] if learnt else []:
            weight.add_(0.1 * torch.randn_like(weight))
    return policy


@pytest.fixture
def batch() -> Batch:
    return pack(make_segments())


def logprobs(policy: Policy, batch: Batch) -> Tensor:
    return policy.logprobs(batch, 1000)


def test_new_adapters_change_nothing(tiny, batch):
    policy = adapted(tiny[0], learnt=False)
    plain = logprobs(Policy(deepcopy(tiny[0]), "none", False), batch)
    assert torch.allclose(logprobs(policy, batch), plain, atol=1e-5)
    first = [Adapters(deepcopy(tiny[0]), ["actor"], SMALL, seed).parameters("actor")[0] for seed in (0, 1)]
    assert torch.equal(first[0], policy.actor_parameters()[0]) and not torch.equal(*first)


def test_the_reference_is_the_model_without_them(tiny, batch):
    policy = adapted(tiny[0])
    plain = logprobs(Policy(deepcopy(tiny[0]), "none", False), batch)
    assert torch.allclose(policy.reference_logprobs(batch, 1000), plain, atol=1e-5)
    assert (logprobs(policy, batch) - plain).abs().max() > 0.1


@pytest.mark.parametrize("critic", ["separate", "shared"])
def test_all_that_is_trained_learns_and_nothing_else(tiny, critic):
    policy = adapted(tiny[0], critic)
    _, gradients = learn(policy, *opinions(policy, make_segments()))
    learning = {name for name, gradient in gradients.items() if gradient.abs().max() > 0}
    assert learning == {name for name in gradients if ".lora_" in name or name.startswith("value_head")}
    count = sum(map(len, (policy.actor_parameters(), policy.critic_parameters())))
    assert len(learning) == count == len({id(p) for p in [*policy.actor_parameters(), *policy.critic_parameters()]})


def test_what_the_critic_learns_leaves_the_actor_alone(tiny, batch):
    policy = adapted(tiny[0])
    before = logprobs(policy, batch), policy.score(batch, 1000).values
    with torch.no_grad():
        for weight in policy.critic_parameters():
            weight.mul_(2)
    assert torch.equal(logprobs(policy, batch), before[0])
    assert not torch.equal(policy.score(batch, 1000).values, before[1])


def test_checkpointed_activations_teach_the_same(way, tiny):
    """Layers are run again after another adapter came into use."""
    policy = adapted(tiny[0])
    batch, credit = opinions(policy, make_segments())
    expected = learn(policy, batch, credit)
    policy.checkpoint_activations()
    assert_same(learn(policy, batch, credit, gradient_checkpointing=True), expected)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_lines_side_by_side_teach_the_same(tiny, checkpointing):
    """All by the adapter of one model, and then all by the other's."""
    policy = adapted(tiny[0])
    batch, credit = opinions(policy, make_segments())
    if checkpointing:
        policy.checkpoint_activations()

    def done(lanes: int) -> tuple[Any, Scores]:
        policy.lanes = Lanes(lanes)
        learned = learn(policy, batch, credit, micro_tokens=64, gradient_checkpointing=checkpointing)
        return learned, policy.score(batch, 64)

    alone, beside = done(1), done(2)
    assert_same(beside[0], alone[0])
    for one, other in zip(vars(alone[1]).values(), vars(beside[1]).values(), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_the_engine_samples_with_the_actors(tiny, batch):
    policy = adapted(tiny[0])
    policy.score(batch, 1000)  # with all of them
    engine = LocalEngine(policy.actor, frozenset(), nullcontext())
    reply = asyncio.run(engine.generate([1, 2, 3], Sampling(8, seed=1)))
    played = pack([segment(turn([1, 2, 3], reply.token_ids))])
    assert torch.allclose(logprobs(policy, played), torch.tensor(reply.logprobs), atol=1e-4)


def test_what_is_saved_is_the_actor(tiny, batch, tmp_path):
    """As a whole model, and as an adapter of the one that it was made over."""
    policy = adapted(tiny[0])
    policy.save(tmp_path)
    tiny[0].save_pretrained(tmp_path / "base")
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert whole.state_dict().keys() == tiny[0].state_dict().keys()
    merged = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tmp_path / "base"), str(tmp_path / "adapter")
    ).merge_and_unload()
    expected = logprobs(policy, batch)
    for model in (whole, merged):
        assert torch.allclose(logprobs(Policy(model, "none", False), batch), expected, atol=1e-4)


def test_servers_get_every_merged_weight(tiny, tmp_path):
    """Each is made when it is read, so that a later one may lie where an earlier one lay."""
    policy = adapted(tiny[0])
    sent = load_file(WeightsFolder(tmp_path).write(policy.weights(), 1) / "model.safetensors")
    expected = dict(policy.weights())
    assert expected.keys() - sent.keys() <= {"lm_head.weight"}  # tied to the embeddings
    for name, weight in sent.items():
        assert torch.equal(weight, expected[name])


@pytest.fixture
def adapting(recipe: Path) -> Path:  # noqa: F811
    """That of the command line, with adapters."""
    tree = yaml.safe_load(recipe.read_text())
    tree["model"]["lora"] = {"rank": 4, "targets": ["q_proj", "up_proj"]}
    recipe.write_text(yaml.safe_dump(tree))
    return recipe


def test_a_run_goes_on_as_if_it_had_not_stopped(adapting):
    config = load_config(adapting, ["checkpoint.every=100"])
    whole = Training(config, resume=False)
    whole.warm_up(Event())
    whole.step()
    whole.save()
    again = Training(config, resume=True)
    for training in (whole, again):
        training.step()
        training.collector.close()
    for one, other in zip(whole.policy.parameters(), again.policy.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_run_leaves_adapters_and_a_whole_model(adapting, capsys):
    folder = adapting.parent / "run"
    assert run("train", adapting) == 0
    kept = load_file(next((folder / "checkpoints").iterdir()) / "policy.safetensors")
    assert {name.split(".lora_")[0].rpartition(".")[2] for name in kept} == {"q_proj", "up_proj", "weight", "bias"}
    assert max(weight.abs().max() for name, weight in kept.items() if ".lora_B.actor." in name) > 0
    adapter = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    over = yaml.safe_load(adapting.read_text())["model"]["path"]
    assert (adapter["r"], adapter["base_model_name_or_path"]) == (4, over)
    capsys.readouterr()
    assert run("eval", folder) == 0
    judged = capsys.readouterr().out
    assert run("eval", folder / "model", adapting, "model.lora=null") == 0
    assert judged.splitlines()[-3:] == capsys.readouterr().out.splitlines()[-3:]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("model.lora.targets=[q_proj, up_prj]", "model.lora.targets names 'up_prj'; did you mean 'up_proj'?"),
        ("model.lora.rank=0", "model.lora.rank"),
        ("model.lora.alpha=0", "model.lora.alpha"),
    ],
)
def test_mistakes_are_told_in_a_sentence(adapting, capsys, words, said):
    assert said in refused(capsys, "train", adapting, words)
