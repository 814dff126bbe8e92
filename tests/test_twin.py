"""The package and examples/ppo_in_one_file.py, written apart, must come to the same numbers from the same turns."""

import importlib.util
import math
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from turnwise import loss
from turnwise.advantages.gae import DualGAE
from turnwise.batch import Batch, pack
from turnwise.collector import Collector
from turnwise.config import Config, KLConfig, UpdateConfig, WarmupConfig
from turnwise.engines.local import LocalEngine
from turnwise.envs.babyai import BabyAIText
from turnwise.policy import Policy, Scores
from turnwise.recipe import parse_config
from turnwise.render import Renderer
from turnwise.seeds import derive, episode_seed
from turnwise.types import Segment
from turnwise.update import Credit, Optimizers, assign_credit, fit_critic, minibatches, update


def load_page() -> Any:
    path = Path(__file__).parents[1] / "examples/ppo_in_one_file.py"
    spec = importlib.util.spec_from_file_location("ppo_in_one_file", path)
    assert spec and spec.loader
    sys.modules[spec.name] = page = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    spec.loader.exec_module(page)
    return page


ppo = load_page()

N_ENV, E_LEN, MAX_REPLY, LIMIT, MINIBATCH = 8, 8, 6, 6, 24
TASKS = ("goto", "pickup")
MICRO_TOKENS = 4000  # the package reads a minibatch in several pieces
SEED = 3  # of the order of rows
EPS = 1e-4  # of Adam; its own 1e-8 turns the rounding of a gradient that should be 0 into a whole step
TOLERANCE = 1e-6
FEW = 8
PHRASES = [f"\nACTION: {said}\n" for said in (*BabyAIText.actions, "Turn left.", "grab it", "fly")]


class Hurried(BabyAIText):
    """With a time limit that a short test can meet."""

    def reset(self, **kwargs: Any) -> Any:
        answer = super().reset(**kwargs)
        self.level.max_steps = LIMIT
        return answer


@dataclass
class Played:
    """Two batches in a row, by the package."""

    config: Config
    folder: Path
    tokenizer: Any
    actor: Any  # that sampled them
    batches: list[list[Segment]]

    @property
    def segments(self) -> list[Segment]:
        return [segment for batch in self.batches for segment in batch]


@pytest.fixture(scope="module")
def played(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """By a random model that knows a few whole phrases, so that some of its replies mean something."""
    torch.manual_seed(1)
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    actor: Any = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32).eval()
    tokenizer.add_tokens(PHRASES)
    actor.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    with torch.no_grad():
        actor.lm_head.weight[-len(PHRASES) :] *= 2
    folder = tmp_path_factory.mktemp("phrases")
    actor.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    config = parse_config(
        {
            "environment": {
                "id": f"{__name__}:Hurried",
                "workers": "inline",
                "tasks": {task: {"task": task} for task in TASKS},
            },
            "parser": {"cue": ppo.CUE},
            "rollout": {"n_env": N_ENV, "e_len": E_LEN, "max_reply_tokens": MAX_REPLY},
            "update": {"minibatch": N_ENV * E_LEN},
        }
    )
    renderer = Renderer(tokenizer)
    engine = LocalEngine(actor, renderer.stop_ids, nullcontext())
    collector = Collector(config, renderer)
    return Played(config, folder, tokenizer, actor, [collector.collect(engine) for _ in range(2)])


def on_the_page(segments: Sequence[Segment]) -> list[Any]:
    return [
        ppo.Segment(
            [
                ppo.Turn(list(t.prompt_ids), list(t.generation.token_ids), list(t.generation.logprobs), t.reward)
                for t in segment.turns
            ],
            list(segment.final_prompt_ids),
        )
        for segment in segments
    ]


# -- play


class Recorded:
    """Seeds and replies as the package had them, handed to the page in the order in which it asks."""

    def __init__(self, played: Played):
        self.seeds = [
            map(partial(episode_seed, "train", played.config.seed, TASKS[slot % len(TASKS)], slot), range(1000))
            for slot in range(N_ENV)
        ]
        turns: list[list[Any]] = [[] for _ in range(N_ENV)]
        for batch in played.batches:
            for segment in batch:
                turns[segment.slot] += segment.turns
        self.rounds = iter(list(zip(*turns, strict=True)))

    def sample(self, actor: Any, prompts: list[list[int]], stop: int) -> list[tuple[list[int], list[float]]]:
        turns = next(self.rounds)
        assert prompts == [list(turn.prompt_ids) for turn in turns]
        return [(list(turn.generation.token_ids), list(turn.generation.logprobs)) for turn in turns]


class Dealt:
    """Stands in for a random generator."""

    def __init__(self, numbers: Any):
        self.numbers = numbers

    def integers(self, high: int) -> int:
        return next(self.numbers)


def test_given_the_same_seeds_and_replies_both_play_the_same_segments(played, monkeypatch):
    recorded = Recorded(played)
    monkeypatch.setattr(ppo, "BabyAIText", Hurried)
    monkeypatch.setattr(ppo, "E_LEN", E_LEN)
    monkeypatch.setattr(ppo, "sample", recorded.sample)
    slots = [ppo.Slot(TASKS[slot % len(TASKS)], 0) for slot in range(N_ENV)]
    for slot, seeds in zip(slots, recorded.seeds, strict=True):
        slot.rng = Dealt(seeds)
        slot.begin()
    for batch in played.batches:
        segments, wins = ppo.play(None, played.tokenizer, slots)
        assert sorted(map(astuple, segments)) == sorted(map(astuple, on_the_page(batch)))
        assert len(wins) == sum(segment.outcome is not None for segment in batch)
        assert sum(wins) == sum(segment.end == "terminated" for segment in batch)


def test_the_turns_show_what_can_happen(played):
    for batch in played.batches:
        assert sum(len(segment.turns) for segment in batch) == N_ENV * E_LEN
    segments = played.segments
    turns = [turn for segment in segments for turn in segment.turns]
    assert {segment.end for segment in segments} == {"terminated", "truncated", "cut"}
    assert {turn.action.status for turn in turns} == {"valid", "translated", "invalid"}
    assert {turn.generation.finish_reason for turn in turns} == {"stop", "length"}


def test_the_page_samples_from_the_distribution_that_it_trains(played, monkeypatch):
    monkeypatch.setattr(ppo, "MAX_REPLY", MAX_REPLY)
    torch.manual_seed(0)
    prompts = [list(turn.prompt_ids) for segment in played.batches[0] for turn in segment.turns]
    stop = played.tokenizer.eos_token_id
    replies = ppo.sample(played.actor, prompts, stop)
    assert all(len(ids) == MAX_REPLY or ids[-1] == stop for ids, _ in replies)
    assert not any(stop in ids[:-1] for ids, _ in replies)
    turns = [ppo.Turn(prompt, *reply, 0.0) for prompt, reply in zip(prompts, replies, strict=True)]
    batch = ppo.make_batch([ppo.Segment(turns, [])], played.actor)
    again = ppo.forward(played.actor, batch.tokens, batch.sampled)[0]
    close(again, batch.logprobs)


# -- training


@dataclass
class Pair:
    """The same models and optimizers twice."""

    policy: Policy
    optimizers: Optimizers
    config: UpdateConfig
    actor: Any
    reference: Any
    critic: Any
    actor_optimizer: torch.optim.AdamW
    critic_optimizer: torch.optim.AdamW

    @property
    def policy_models(self) -> tuple[list[Tensor], list[Tensor]]:
        return list(self.policy.actor_parameters()), list(self.policy.critic_parameters())

    @property
    def page_models(self) -> tuple[list[Tensor], list[Tensor]]:
        return list(self.actor.parameters()), list(self.critic.parameters())


def make_pair(played: Played, epochs: int = 1, minibatch: int = MINIBATCH) -> Pair:
    """Models apart from each other: the policy is no more the one that sampled, and the critic has opinions."""
    config = UpdateConfig(
        actor_lr=ppo.ACTOR_LR,  # all else as the package has it by default
        critic_lr=ppo.CRITIC_LR,
        minibatch=minibatch,
        epochs=epochs,
        micro_tokens=MICRO_TOKENS,
    )
    torch.manual_seed(1)
    policy = Policy(deepcopy(played.actor))
    (reference,) = policy.references
    assert policy.critic_trunk is not None
    with torch.no_grad():
        for model in (policy.actor, reference, policy.critic_trunk, policy.value_head):
            for parameter in model.parameters():
                parameter += 0.02 * torch.randn(parameter.shape)
        policy.value_head.weight *= 5
    actor = deepcopy(policy.actor)
    critic = ppo.Critic(actor)
    critic.trunk, critic.head = deepcopy(policy.critic_trunk), deepcopy(policy.value_head)
    optimizers = Optimizers(policy, config)
    page = ppo.make_optimizer(actor, ppo.ACTOR_LR), ppo.make_optimizer(critic, ppo.CRITIC_LR)
    for one, other in zip((optimizers.actor, optimizers.critic), page, strict=True):
        same = ("lr", "betas", "eps", "weight_decay", "amsgrad")
        assert [one.param_groups[0][key] for key in same] == [other.param_groups[0][key] for key in same]
        one.param_groups[0]["eps"] = other.param_groups[0]["eps"] = EPS
    return Pair(policy, optimizers, config, actor, deepcopy(reference), critic, *page)


def package_credit(pair: Pair, packed: Batch) -> tuple[Scores, Credit]:
    scores = pair.policy.score(packed, MICRO_TOKENS)
    return scores, assign_credit(packed, scores, DualGAE(), KLConfig().reward)


def update_package(pair: Pair, segments: list[Segment]) -> dict[str, float]:
    packed = pack(segments)
    credit = package_credit(pair, packed)[1]
    return update(pair.policy, pair.optimizers, packed, credit, pair.config, KLConfig(), SEED)


def update_page(pair: Pair, segments: list[Segment]) -> tuple[float, float]:
    """On the package's minibatches. Returns the losses of actor and critic."""
    batch, packed = ppo.make_batch(on_the_page(segments), pair.reference), pack(segments)
    values, advantages, returns = ppo.assign_credit(batch, pair.critic)
    split = [
        on_page_rows(packed, rows)
        for epoch in range(pair.config.epochs)
        for rows in minibatches(packed.trained_rows, packed, pair.config.minibatch, derive(SEED, epoch))
    ]
    return (
        ppo.train_actor(batch, advantages, pair.actor, pair.actor_optimizer, split),
        ppo.train_critic(batch, values, returns, pair.critic, pair.critic_optimizer, split),
    )


def on_page_rows(packed: Batch, rows: Tensor) -> Tensor:
    """Numbers of the same turns' rows on the page, which has no rows for next prompts."""
    return torch.searchsorted(packed.trained_rows, rows)


def apart(one: Iterable[Tensor], other: Iterable[Tensor]) -> float:
    """The largest difference between two models' parameters."""
    return max(float((a - b).detach().abs().max()) for a, b in zip(one, other, strict=True))


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("number", [0, 1])
def test_both_judge_and_credit_alike(played, number):
    segments, pair = played.batches[number], make_pair(played)
    packed, batch = pack(segments), ppo.make_batch(on_the_page(segments), pair.reference)
    scores, credit = package_credit(pair, packed)
    values, advantages, returns = ppo.assign_credit(batch, pair.critic)
    sampled = batch.sampled
    assert scores.values.std() > 0.1
    assert credit.kl.std() > 0.1
    assert scores.reference is not None
    close(values[sampled], scores.values)
    close(ppo.forward(pair.reference, batch.tokens, sampled)[0][sampled], scores.reference)
    close(ppo.forward(pair.actor, batch.tokens, sampled)[0][sampled], pair.policy.logprobs(packed, MICRO_TOKENS))
    close(batch.rewards[sampled].double(), packed.rewards - KLConfig().reward * credit.kl)
    assert torch.equal(batch.first[sampled], packed.turn_firsts)
    close(returns[sampled], credit.returns)
    close(ppo.whiten(advantages, sampled)[sampled], credit.advantages)


def test_the_example_of_the_page_is_right():
    rewards, values = [0.0] * 6 + [1.0], [0.50, 0.55, 0.60, 0.65, 0.70, 0.80, 0.90]
    advantages, _ = ppo.gae(rewards, values, 0.0, [2, 3, 2])
    expected = [0.451484, 0.401484, 0.380100, 0.330100, 0.280100, 0.200000, 0.100000]
    assert advantages == pytest.approx(expected, abs=1e-6)


def test_the_losses_and_their_gradients_agree_far_from_where_they_started():
    config, draw = UpdateConfig(), torch.Generator().manual_seed(0)
    new, old, advantages, values, old_values, returns = torch.randn((6, 4000), generator=draw)
    first = torch.rand(4000, generator=draw) < 0.2
    new.requires_grad_()
    values.requires_grad_()
    page = ppo.policy_loss(new, old, advantages), ppo.value_loss(values, old_values, returns, first)
    policy, stopped = loss.policy_loss(new, old, advantages, config.clip, config.dual_clip)
    error = loss.value_loss(values, old_values, returns, config.value_clip)
    package = policy, torch.where(first, config.first_token_weight, 1.0) * error
    assert 0.2 < stopped.float().mean() < 0.8
    for one, other, leaf in zip(page, package, (new, values), strict=True):
        close(one, other)
        (one_gradient,), (other_gradient,) = (torch.autograd.grad(x.sum(), leaf) for x in (one, other))
        assert 0.2 < (other_gradient == 0).float().mean() < 0.8 or leaf is values
        close(one_gradient, other_gradient)


def test_the_loss_of_a_whole_batch_agrees(played):
    segments = played.batches[0]
    pair = make_pair(played, minibatch=N_ENV * E_LEN)
    stats = update_package(pair, segments)
    actor_loss, critic_loss = update_page(pair, segments)
    firsts = N_ENV * E_LEN / len(pack(segments).logprobs)
    extra = (pair.config.first_token_weight - 1) * firsts * stats["critic/first_token_loss"]
    assert actor_loss == pytest.approx(stats["actor/loss"] - pair.config.entropy * stats["actor/entropy"], abs=1e-5)
    assert critic_loss == pytest.approx(stats["critic/loss"] + extra, abs=1e-5)


@pytest.mark.parametrize("epochs", [1, 2])
def test_an_update_makes_the_same_models(played, epochs):
    pair = make_pair(played, epochs)
    start = deepcopy((pair.policy_models, pair.page_models))
    stats = update_package(pair, played.batches[1])
    update_page(pair, played.batches[1])
    assert stats["actor/clipped_per_token"] > 0.1
    for before, package, page in zip(start[0], pair.policy_models, pair.page_models, strict=True):
        assert apart(before, package) > 3e-4
        assert apart(package, page) < TOLERANCE


def test_a_warm_up_makes_the_same_critic(played):
    pair, segments = make_pair(played), played.segments
    packed, batch = pack(segments), ppo.make_batch(on_the_page(segments), pair.reference)
    before = deepcopy(pair.policy_models)
    warmup, trained = WarmupConfig(w_frac=0.35), packed.trained_rows
    for seed in (0, 1):
        credit = assign_credit(packed, pair.policy.score(packed, MICRO_TOKENS), DualGAE(), KLConfig().reward)
        fit_critic(pair.policy, pair.optimizers, packed, credit, pair.config, warmup, seed)
        order = torch.randperm(len(trained), generator=torch.Generator().manual_seed(seed))
        drawn = trained[order[: math.ceil(warmup.w_frac * len(trained))]]
        split = [on_page_rows(packed, rows) for rows in drawn.split(MINIBATCH)]
        values, _, returns = ppo.assign_credit(batch, pair.critic)
        ppo.train_critic(batch, values, returns, pair.critic, pair.critic_optimizer, split, clip=math.inf)
    assert len(split) > 1
    assert apart(before[0], pair.policy_models[0]) == 0
    assert apart(before[1], pair.policy_models[1]) > 1e-3
    assert apart(pair.policy_models[1], pair.page_models[1]) < TOLERANCE


@pytest.fixture(scope="module")
def updated(played: Played) -> tuple[list[Tensor], list[Tensor]]:
    """Actor and critic after an update by the package on a few segments."""
    pair = make_pair(played)
    update_package(pair, played.batches[1][:FEW])
    return pair.policy_models


@pytest.mark.parametrize(
    "name",
    [
        *("KL_PENALTY", "STEP_GAMMA", "STEP_LAMBDA", "TOKEN_GAMMA", "TOKEN_LAMBDA", "CLIP", "DUAL_CLIP"),
        *("FIRST_TOKEN_WEIGHT", "ENTROPY_BONUS", "WEIGHT_DECAY", "MAX_GRADIENT"),
    ],
)
def test_any_other_number_on_the_page_would_be_noticed(played, updated, monkeypatch, name):
    pair = make_pair(played)
    monkeypatch.setattr(ppo, name, 0.5 * getattr(ppo, name))
    for optimizer in (pair.actor_optimizer, pair.critic_optimizer):
        optimizer.param_groups[0]["weight_decay"] = ppo.WEIGHT_DECAY
    update_page(pair, played.batches[1][:FEW])
    assert max(map(apart, updated, pair.page_models)) > TOLERANCE


# -- the whole of it


def test_the_page_runs(played, monkeypatch, capsys):
    monkeypatch.setattr(ppo, "BabyAIText", Hurried)
    for name, value in {"N_ENV": 4, "E_LEN": 10, "MAX_REPLY": 6, "MINIBATCH": 16, "WARMUP_BATCHES": 1}.items():
        monkeypatch.setattr(ppo, name, value)
    ppo.main(["--model", str(played.folder), "--steps", "2", "--tasks", *TASKS])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[-2:]] == ["step 1", "step 2"]
    assert all(re.search(r"success [01]\.\d\d of [1-9]\d* episodes", line) for line in lines[-2:])
