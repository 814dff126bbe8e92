"""The optimisation schedule: PPO epochs over minibatches, and the warm-up of the critic before them."""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from turnwise import loss
from turnwise.batch import Batch, Streams
from turnwise.config import KLConfig, UpdateConfig, WarmupConfig
from turnwise.policy import Policy, Scores
from turnwise.protocols import Advantage
from turnwise.seeds import derive


@dataclass(frozen=True)
class Credit:
    """What a batch is trained towards; all [N]."""

    advantages: Tensor
    returns: Tensor
    old_values: Tensor
    reference: Tensor | None  # log-probs
    kl: Tensor  # k1 of the sampled tokens to the reference, in nats; zeros without one


def assign_credit(batch: Batch, scores: Scores, advantage: Advantage, kl_coefficient: float) -> Credit:
    """Rewards less the KL penalty on every sampled token, through the estimator. No gradient flows here."""
    reference = scores.reference
    kl = torch.zeros_like(batch.logprobs) if reference is None else loss.kl_k1(batch.logprobs, reference)
    streams = Streams(
        batch.segments,
        batch.rewards - kl_coefficient * kl,
        scores.values,
        scores.bootstraps,
        batch.step_ends,
        batch.segment_ends,
    )
    advantages, returns = advantage(streams)
    return Credit(advantages, returns, scores.values, reference, kl)


class Optimizers:
    """AdamW for the actor and for the critic, with one learning-rate schedule in optimizer steps."""

    def __init__(self, policy: Policy, config: UpdateConfig, total_steps: int):
        self.config = config
        self.total_steps = total_steps
        self.actor = self._adamw(policy.actor_parameters(), config.actor_lr)
        self.critic = self._adamw(policy.critic_parameters(), config.critic_lr)
        self.taken = 0  # optimizer steps of the actor; the critic's warm-up does not count

    def _adamw(self, parameters: list[torch.nn.Parameter], lr: float) -> torch.optim.AdamW:
        return torch.optim.AdamW(parameters, lr=lr, weight_decay=self.config.weight_decay, fused=True)

    def step(self, actor: bool = True) -> dict[str, float]:
        """Clip each model's gradient, apply the schedule, step. Returns the gradient norms before clipping."""
        norms = {}
        for name, optimizer in (("actor", self.actor), ("critic", self.critic)):
            if name == "actor" and not actor:
                continue
            group = optimizer.param_groups[0]
            norm = torch.nn.utils.clip_grad_norm_(group["params"], self.config.grad_clip or math.inf)
            if not torch.isfinite(norm):
                raise FloatingPointError(
                    f"the gradient of the {name} is {norm.item()}: lower update.{name}_lr, or use model.precision=fp32"
                )
            base = self.config.actor_lr if name == "actor" else self.config.critic_lr
            group["lr"] = base * (self._schedule() if actor else 1.0)
            optimizer.step()
            norms[f"{name}/grad_norm"] = float(norm)
        self.taken += actor
        self.zero_grad()
        return norms

    def zero_grad(self) -> None:
        self.actor.zero_grad(set_to_none=True)
        self.critic.zero_grad(set_to_none=True)

    def _schedule(self) -> float:
        warm = min(1.0, (self.taken + 1) / max(1, self.config.lr_warmup_steps))
        done = min(1.0, self.taken / max(1, self.total_steps))
        shape = {"constant": 1.0, "linear": 1.0 - done, "cosine": 0.5 * (1 + math.cos(math.pi * done))}
        return warm * shape[self.config.lr_schedule]


class Means:
    """Running means, each over its own count."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = defaultdict(float)
        self._counts: dict[str, float] = defaultdict(float)

    def add(self, count: float = 1.0, **sums: Tensor | float) -> None:
        for name, value in sums.items():
            self._sums[name] += float(value)
            self._counts[name] += count

    def __getitem__(self, name: str) -> float:
        return self._sums[name] / self._counts[name]


def update(
    policy: Policy, optimizers: Optimizers, batch: Batch, credit: Credit, config: UpdateConfig, kl: KLConfig, seed: int
) -> dict[str, float]:
    """Train actor and critic on a batch for some epochs of minibatches; returns means over what was trained."""
    policy.train(config.gradient_checkpointing)
    advantages = loss.whiten(credit.advantages) if config.whiten else credit.advantages
    weights = torch.where(batch.turn_firsts, config.first_token_weight, 1.0)
    means, norms = Means(), Means()
    drift = 0.0  # largest gap between the engine's log-prob and the trainer's, before anything was trained
    for epoch in range(config.epochs):
        for number, rows in enumerate(minibatches(batch.trained_rows, batch, config.minibatch, derive(seed, epoch))):
            tokens = int(batch.sampled_per_row[rows].sum())
            for micro in batch.micros(rows, config.micro_tokens, finals=False):
                index = micro.index
                forward = policy(micro)
                new, values = forward.logprobs.cpu(), forward.values.cpu()
                old = batch.logprobs[index]
                actor, stopped = loss.policy_loss(new, old, advantages[index], config.clip, config.dual_clip)
                error = loss.value_loss(values, credit.old_values[index], credit.returns[index], config.value_clip)
                critic = weights[index] * error
                entropy = forward.entropy.cpu()
                total = actor.sum() - config.entropy * entropy.sum() + config.value_coefficient * critic.sum()
                if credit.reference is not None and kl.loss:
                    total = total + kl.loss * loss.kl_k3(new, credit.reference[index]).sum()
                (total / tokens).backward()
                with torch.no_grad():
                    gap = new - old
                    if epoch == 0 and number == 0:
                        drift = max(drift, float(gap.abs().max()))
                    means.add(
                        len(index),
                        policy_loss=actor.sum(),
                        clipped=stopped.sum(),
                        entropy=entropy.sum(),
                        moved=loss.kl_k3(old, new).sum(),
                    )
                    means.add(len(index), value_loss=0.5 * ((values - credit.returns[index]) ** 2).sum())
                    first = batch.turn_firsts[index]
                    means.add(int(first.sum()), first=0.5 * ((values - credit.returns[index])[first] ** 2).sum())
            for name, norm in optimizers.step().items():
                norms.add(**{name: norm})
    return {
        "actor/loss": means["policy_loss"],
        "actor/clipped_per_token": means["clipped"],
        "actor/entropy": means["entropy"],
        "actor/moved_kl": means["moved"],
        "actor/engine_gap": drift,
        "actor/grad_norm": norms["actor/grad_norm"],
        "critic/loss": means["value_loss"],
        "critic/first_token_loss": means["first"],
        "critic/grad_norm": norms["critic/grad_norm"],
    }


def minibatches(rows: Tensor, batch: Batch, turns: int, seed: int) -> Iterator[Tensor]:
    """The rows in a random order, dealt into as many parts as the batch holds minibatches of `turns` turns."""
    parts = max(1, round(sum(len(segment.turns) for segment in batch.segments) / turns))
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    return (rows[part] for part in order.tensor_split(min(parts, len(rows))))


def fit_critic(
    policy: Policy,
    optimizers: Optimizers,
    batch: Batch,
    reference: Tensor | None,
    advantage: Advantage,
    kl_coefficient: float,
    config: UpdateConfig,
    warmup: WarmupConfig,
    seed: int,
) -> dict[str, float]:
    """One warm-up iteration: credit by the critic as it is now on all turns, then training on a random part of them.

    The actor stays as it is, bit for bit.
    """
    scores = policy.score(batch, config.micro_tokens, reference=False)
    credit = assign_credit(batch, Scores(scores.values, scores.bootstraps, reference), advantage, kl_coefficient)
    policy.train(config.gradient_checkpointing)
    weights = torch.where(batch.turn_firsts, config.first_token_weight, 1.0)
    generator = torch.Generator().manual_seed(seed)
    trained = batch.trained_rows
    drawn = trained[torch.randperm(len(trained), generator=generator)[: math.ceil(warmup.w_frac * len(trained))]]
    size = math.ceil(len(trained) * config.minibatch / sum(len(segment.turns) for segment in batch.segments))
    for rows in drawn.split(size):
        tokens = int(batch.sampled_per_row[rows].sum())
        for micro in batch.micros(rows, config.micro_tokens, finals=False):
            values = policy.values(micro)[0].cpu()
            index = micro.index
            error = loss.value_loss(values, credit.old_values[index], credit.returns[index], config.value_clip)
            ((weights[index] * error).sum() / tokens).backward()
        optimizers.step(actor=False)
    return {
        "critic/loss": float(0.5 * ((scores.values - credit.returns) ** 2).mean()),
        "critic/explained_variance": float(loss.explained_variance(scores.values, credit.returns)),
    }
