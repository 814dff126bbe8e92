"""The optimisation schedule: PPO epochs over minibatches, and the warm-up of the critic before them."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from turnwise import loss
from turnwise.batch import Batch, Estimate, Streams
from turnwise.config import KLConfig, UpdateConfig, WarmupConfig
from turnwise.lines import Micro
from turnwise.policy import Forward, Policy, Scores
from turnwise.protocols import Advantage
from turnwise.seeds import derive


@dataclass(frozen=True)
class Credit:
    """What a batch is trained towards; all [N]."""

    advantages: Tensor  # whitened, if they are to be
    returns: Tensor | None  # None: there is no critic
    old_values: Tensor  # zeros where there is no critic
    reference: Tensor | None  # log-probs
    kl: Tensor  # k1 of the sampled tokens to the reference, in nats; zeros without one
    targets: Tensor | None = None  # bool: where the critic learns its return; None: everywhere

    @property
    def learned(self) -> Tensor:
        """[N] bool: where the critic learns."""
        return torch.ones_like(self.advantages, dtype=torch.bool) if self.targets is None else self.targets


def assign_credit(
    batch: Batch, scores: Scores, advantage: Advantage, kl_coefficient: float, whiten: bool | None = None
) -> Credit:
    """Rewards less the KL penalty on every sampled token, through the estimator. No gradient flows here.

    Advantages are whitened as `whiten` says; None leaves it to the estimator.
    """
    _refuse_divergence(batch, scores)
    reference = scores.reference
    kl = torch.zeros_like(batch.logprobs) if reference is None else loss.kl_k1(batch.logprobs, reference)
    streams = Streams(
        batch.segments,
        batch.rewards - kl_coefficient * kl,
        scores.values.clone(),  # an estimator may write into what it is given
        scores.bootstraps,
        batch.step_ends.clone(),
        batch.segment_ends.clone(),
    )
    estimate = advantage(streams)
    _refuse_surprises(advantage, estimate, len(kl))
    advantages, returns = estimate.advantages.float(), estimate.returns
    if advantage.whiten if whiten is None else whiten:
        advantages = loss.whiten(advantages, estimate.targets)
    returns = None if returns is None else returns.float()
    return Credit(advantages, returns, scores.values, reference, kl, estimate.targets)


def _refuse_divergence(batch: Batch, scores: Scores) -> None:
    """A model that the last step has broken is not the estimator's mistake."""
    for name, told in {"actor": [batch.logprobs], "critic": [scores.values, scores.bootstraps]}.items():
        if not all(x.isfinite().all() for x in told):
            raise FloatingPointError(
                f"the {name} answers with numbers that are not finite: lower update.{name}_lr, or use "
                "model.precision=fp32"
            )


def _refuse_surprises(advantage: Advantage, estimate: Estimate, count: int) -> None:
    """An estimator of somebody else may say one thing and answer another."""
    name = type(advantage).__name__
    if not isinstance(estimate, Estimate):
        raise ValueError(
            f"advantage: {name} answers with a {type(estimate).__name__}; let it be a turnwise.batch.Estimate"
        )
    if advantage.critic != (estimate.returns is not None):
        raise ValueError(
            f"advantage: {name} has critic={advantage.critic}, but answers with{'out' * advantage.critic} returns; "
            "make the two agree"
        )
    for field, x in vars(estimate).items():
        if not isinstance(x, Tensor | None):
            raise ValueError(f"advantage: {name} answers with {field} in a {type(x).__name__}; make it a tensor")
        if x is not None and x.shape != (count,):
            raise ValueError(f"advantage: {name} answers with {field} of shape {list(x.shape)}; make it [{count}]")
        if x is not None and not x.isfinite().all():
            raise ValueError(f"advantage: {name} answers with {field} some of which are no finite numbers")
    targets = estimate.targets
    if targets is not None and (targets.dtype != torch.bool or not targets.any()):
        raise ValueError(
            f"advantage: {name} answers with targets of {targets.dtype}, {int(targets.count_nonzero())} of which are "
            "set; let them be of torch.bool, and one at least True"
        )


class Optimizers:
    """AdamW for the actor and for the critic, if any.

    The learning rate warms up over the actor's optimizer steps, and decays with the share of the training that is over.
    """

    def __init__(self, policy: Policy, config: UpdateConfig):
        self.config = config
        self.done = 0.0  # share of the training that is over
        self.actor = self._adamw(policy.actor_parameters(), config.actor_lr)
        critic = policy.critic_parameters()
        self.critic = self._adamw(critic, config.critic_lr) if critic else None
        self.taken = 0  # optimizer steps of the actor; the critic's warm-up does not count

    def _adamw(self, parameters: list[torch.nn.Parameter], lr: float) -> torch.optim.AdamW:
        return torch.optim.AdamW(parameters, lr=lr, weight_decay=self.config.weight_decay, fused=True)

    def named(self) -> dict[str, torch.optim.AdamW]:
        """Those that there are, by their models."""
        return {"actor": self.actor} | ({"critic": self.critic} if self.critic is not None else {})

    def step(self, *models: str, scheduled: bool = True) -> dict[str, float]:
        """Clip the gradient of each of these models, step, forget it. Returns the norms before clipping."""
        norms = {}
        for name in models:
            optimizer = self.named()[name]
            group = optimizer.param_groups[0]
            norm = torch.nn.utils.clip_grad_norm_(group["params"], self.config.grad_clip or math.inf)
            if not torch.isfinite(norm):
                raise FloatingPointError(
                    f"the gradient of the {name} is {norm.item()}: lower update.{name}_lr, or use model.precision=fp32"
                )
            base = self.config.actor_lr if name == "actor" else self.config.critic_lr
            group["lr"] = base * (self._schedule() if scheduled else 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            norms[f"{name}/grad_norm"] = float(norm)
        self.taken += "actor" in models
        return norms

    def _schedule(self) -> float:
        warm = min(1.0, (self.taken + 1) / max(1, self.config.lr_warmup_steps))
        shape = {"constant": 1.0, "linear": 1.0 - self.done, "cosine": 0.5 * (1 + math.cos(math.pi * self.done))}
        return warm * shape[self.config.lr_schedule]


@dataclass(frozen=True)
class Sums:
    """What was seen in a micro-batch: sums by name, and over how many tokens."""

    sums: Mapping[str, Tensor]
    count: int


class Means:
    """Running means, each over its own count."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = defaultdict(float)
        self._counts: dict[str, float] = defaultdict(float)

    def add(self, sums: Mapping[str, Tensor | float], count: float = 1.0) -> None:
        for name, value in sums.items():
            self._sums[name] += float(value)
            self._counts[name] += count

    def add_all(self, every: Sequence[Sums]) -> None:
        for one in every:
            self.add(one.sums, one.count)

    def figures(self) -> dict[str, float]:
        return {name: total / self._counts[name] for name, total in self._sums.items() if self._counts[name]}


class Objective:
    """The losses of a micro-batch as sums over its tokens, and what they tell."""

    def __init__(self, batch: Batch, credit: Credit, config: UpdateConfig, kl: float):
        self.batch, self.credit, self.config, self.kl = batch, credit, config, kl
        self._weights = self._critic_weights()
        self._credited = batch.holds(credit.advantages != 0)

    def moving(self, rows: Tensor) -> Tensor:
        """Those of the rows that have a gradient for the actor; one at least, since an optimizer steps with a gradient.

        Where no entropy and no KL is in the loss, a row has none if all its advantages are 0: its group got the same.
        """
        if self.config.entropy or (self.kl and self.credit.reference is not None):
            return rows
        credited = rows[self._credited[rows]]
        return credited if len(credited) else rows[:1]

    def actor(self, forward: Forward, index: Tensor) -> tuple[Tensor, list[Sums]]:
        """The clipped surrogate, the entropy bonus and the KL term; `index` [n] says which of N they are of."""
        config, credit = self.config, self.credit
        new, old, entropy = forward.logprobs.cpu(), self.batch.logprobs[index], forward.entropy.cpu()
        surrogate, stopped = loss.policy_loss(new, old, credit.advantages[index], config.clip, config.dual_clip)
        total = surrogate.sum() - config.entropy * entropy.sum()
        if credit.reference is not None and self.kl:
            total = total + self.kl * loss.kl_k3(new, credit.reference[index]).sum()
        told = {
            "actor/loss": surrogate,
            "actor/clipped_per_token": stopped,
            "actor/entropy": entropy,
            "actor/moved_kl": loss.kl_k3(old, new.detach()),
        }
        return total, [Sums({name: x.detach().sum() for name, x in told.items()}, len(index))]

    def critic(self, values: Tensor, index: Tensor) -> tuple[Tensor, list[Sums]]:
        """The weighed errors of values [n], as the loss has them, and without weights."""
        assert self.credit.returns is not None
        values, targets, learned = values.cpu(), self.credit.returns[index], self.credit.learned[index]
        error = loss.value_loss(values, self.credit.old_values[index], targets, self.config.value_clip)
        plain = 0.5 * (values.detach() - targets) ** 2
        first = learned & self.batch.turn_firsts[index]
        told = [
            Sums({"critic/loss": plain[learned].sum()}, int(learned.sum())),
            Sums({"critic/first_token_loss": plain[first].sum()}, int(first.sum())),
        ]
        return self.config.value_coefficient * (self._weights[index] * error).sum(), told

    def _critic_weights(self) -> Tensor:
        """[N] how much the error at each token weighs; 0 where the critic does not learn."""
        targets = self.credit.targets
        if targets is None:
            return torch.where(self.batch.turn_firsts, self.config.first_token_weight, 1.0)
        weight, default = self.config.first_token_weight, type(self.config).model_fields["first_token_weight"].default
        if weight != default:
            raise ValueError(
                f"update.first_token_weight={weight} does nothing where the estimator says which tokens teach the "
                "critic, all alike; leave it out"
            )
        # Sums are divided by the number of all tokens: this makes that a mean over targets, and every target weighs
        # the same, however few of them share its minibatch.
        return targets * (len(targets) / targets.sum())


def update(
    policy: Policy, optimizers: Optimizers, batch: Batch, credit: Credit, config: UpdateConfig, kl: KLConfig, seed: int
) -> dict[str, float]:
    """Train actor and critic on a batch for some epochs of minibatches; returns means over what was trained.

    A critic of its own learns before the actor, so that activations and gradients of one model are held at a time.
    """
    policy.train(config.gradient_checkpointing)
    objective, means = Objective(batch, credit, config, kl.loss), Means()
    taught = credit.returns is not None
    apart, shared = taught and policy.separate, taught and not policy.separate
    drift: list[Tensor] = []  # from the engine's log-probs to the trainer's of the same weights
    for epoch in range(config.epochs):
        for number, rows in enumerate(minibatches(batch.trained_rows, batch, config.minibatch, derive(seed, epoch))):
            moving = rows if shared else objective.moving(rows)
            micros = policy.micros(batch, rows if apart else moving, config.micro_tokens)
            tokens = int(batch.sampled_per_row[rows].sum())
            if apart:
                means.add_all(_teach(policy, objective, micros, tokens))
                means.add(optimizers.step("critic"))
                if len(moving) < len(rows):
                    micros = policy.micros(batch, moving, config.micro_tokens)
            sums, gaps = _act(policy, objective, micros, tokens, shared)
            means.add_all(sums)
            means.add(optimizers.step(*["actor", "critic"] if shared else ["actor"]))
            if epoch == number == 0:
                drift = gaps
    return {**mismatch(torch.cat(drift)), **means.figures()}


def _teach(policy: Policy, objective: Objective, micros: Sequence[Micro], tokens: int) -> list[Sums]:
    """Add the gradients of the critic, which reads by itself, in a minibatch of so many sampled tokens."""

    def judge(micro: Micro) -> tuple[Tensor, list[Sums]]:
        error, sums = objective.critic(policy.values(micro)[0], micro.index)
        return error / tokens, sums

    return [one for sums in policy.backward(policy.critic_role, judge, micros) for one in sums]


def _act(
    policy: Policy, objective: Objective, micros: Sequence[Micro], tokens: int, shared: bool
) -> tuple[list[Sums], list[Tensor]]:
    """Add the gradients of the actor and of a critic on its trunk. Returns the gaps to the engine's log-probs too."""
    batch = objective.batch

    def act(micro: Micro) -> tuple[Tensor, tuple[list[Sums], Tensor]]:
        forward = policy(micro)
        total, sums = objective.actor(forward, micro.index)
        if shared:
            assert forward.values is not None
            error, of_critic = objective.critic(forward.values, micro.index)
            total, sums = total + error, sums + of_critic
        gap = forward.logprobs.detach().cpu() - batch.logprobs[micro.index]
        return total / tokens, (sums, gap[batch.newest[micro.index]])

    told = policy.backward("actor", act, micros)
    return [one for sums, _ in told for one in sums], [gap for _, gap in told]


def mismatch(gap: Tensor) -> dict[str, float]:
    """How well the engine samples from the policy that is trained, by the trainer's log-probs less the engine's [n]."""
    if not len(gap):
        return {}
    gap = gap.double()  # in fp32 the divergence of a gap of rounding is rounding itself
    return {
        "actor/engine_gap": float(gap.abs().max()),
        "actor/engine_gap_mean": float(gap.abs().mean()),
        "actor/engine_k3": float(loss.kl_k3(torch.zeros_like(gap), gap).mean()),
        "actor/engine_effective": float(loss.effective_share(gap)),
    }


def minibatches(rows: Tensor, batch: Batch, turns: int, seed: int) -> Iterator[Tensor]:
    """The rows in a random order, dealt into as many parts as the batch holds minibatches of `turns` turns.

    Those that a memory asked for do not count: the same number of optimizer steps for every memory.
    """
    parts = max(1, round(sum(segment.acted for segment in batch.segments) / turns))
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    return (rows[part] for part in order.tensor_split(min(parts, len(rows))))


def fit_critic(
    policy: Policy,
    optimizers: Optimizers,
    batch: Batch,
    credit: Credit,
    config: UpdateConfig,
    warmup: WarmupConfig,
    seed: int,
) -> dict[str, float]:
    """Train the critic on a random part of the turns; returns how well it knew all of them before.

    The actor stays as it is, bit for bit. So values need not stay near those that turns were credited by, and no clip
    keeps them there: one of 0.5 would let each fit come nearer to returns of 100 by no more than that.
    """
    assert credit.returns is not None
    policy.train(config.gradient_checkpointing)
    objective = Objective(batch, credit, config.model_copy(update={"value_clip": None}), 0.0)
    generator = torch.Generator().manual_seed(seed)
    trained = batch.trained_rows
    drawn = trained[torch.randperm(len(trained), generator=generator)[: math.ceil(warmup.w_frac * len(trained))]]
    size = math.ceil(len(trained) * config.minibatch / max(1, sum(segment.acted for segment in batch.segments)))
    for rows in drawn.split(size):
        micros = policy.micros(batch, rows, config.micro_tokens)
        _teach(policy, objective, micros, int(batch.sampled_per_row[rows].sum()))
        optimizers.step("critic", scheduled=False)
    values, returns = credit.old_values[credit.learned], credit.returns[credit.learned]
    return {
        "critic/loss": float(0.5 * ((values - returns) ** 2).mean()),
        "critic/explained_variance": float(loss.explained_variance(values, returns)),
    }
