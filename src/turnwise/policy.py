"""Actor, critic and frozen reference, on any causal language model of transformers.

The shift by one between a token and the place that predicts it was made by the batch: hidden states are read at
`micro.before`, and there the head scores the token and the critic the state before it.
"""

from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from turnwise.batch import Batch, Micro
from turnwise.trunk import padded, prepare, read


@dataclass(frozen=True)
class Forward:
    """What one pass over a micro-batch says of its sampled tokens."""

    logprobs: Tensor  # [n]
    entropy: Tensor  # [n] nats
    values: Tensor | None  # [n]; None: there is no critic


@dataclass(frozen=True)
class Scores:
    """What the models say of a batch before it is trained on."""

    values: Tensor  # [N]; zeros where there is no critic
    bootstraps: Tensor  # [E] likewise
    reference: Tensor | None  # [N] log-probs


class Policy(nn.Module):
    """`critic` is "separate" (a trunk of its own), "shared" (a head on the actor's trunk) or "none"."""

    def __init__(
        self,
        actor: PreTrainedModel,
        critic: str = "separate",
        reference: bool = True,
        temperature: float = 1.0,
        precision: AbstractContextManager[object] | None = None,
    ):
        super().__init__()
        if getattr(actor.config, "final_logit_softcapping", None):
            raise ValueError(f"model: {actor.config.model_type} caps its logits, which the trainer does not reproduce")
        prepare(actor)
        self.actor = actor
        self.critic_trunk = deepcopy(actor.get_decoder()) if critic == "separate" else None
        self.value_head = None if critic == "none" else _value_head(actor)
        self.temperature = temperature
        self.precision = precision or nullcontext()
        # Not a submodule: it is neither trained nor saved.
        self._reference = (deepcopy(actor).requires_grad_(False).eval(),) if reference else ()

    @property
    def reference(self) -> PreTrainedModel | None:
        return self._reference[0] if self._reference else None

    @property
    def device(self) -> torch.device:
        return self.actor.device

    def actor_parameters(self) -> list[nn.Parameter]:
        return list(self.actor.parameters())

    def critic_parameters(self) -> list[nn.Parameter]:
        return [parameter for part in (self.critic_trunk, self.value_head) if part for parameter in part.parameters()]

    def forward(self, micro: Micro) -> Forward:
        """Log-probs, entropies and values of the sampled tokens, with gradients to actor and critic."""
        with self.precision:
            hidden = self._read(self.actor.get_decoder(), micro)[0]
            logprobs, entropy = self._head(self.actor, hidden, micro)
            if self.critic_trunk is not None:
                hidden = self._read(self.critic_trunk, micro)[0]
        return Forward(logprobs, entropy, None if self.value_head is None else _values(self.value_head, hidden))

    def values(self, micro: Micro) -> tuple[Tensor, Tensor]:
        """Values of the sampled tokens [n] and of the next prompts [e]; gradients reach the critic alone."""
        with self.precision:
            if self.critic_trunk is not None:
                before, ends = self._read(self.critic_trunk, micro)
            else:
                with torch.no_grad():
                    before, ends = self._read(self.actor.get_decoder(), micro)
        assert self.value_head is not None
        return _values(self.value_head, before), _values(self.value_head, ends)

    @torch.no_grad()
    def score(self, batch: Batch, max_tokens: int, reference: bool = True) -> Scores:
        """Values before each sampled token and of each next prompt; log-probs by the reference."""
        count = len(batch.logprobs)
        values, bootstraps = torch.zeros(count), torch.zeros(len(batch.segments))
        if self.value_head is not None:
            for micro in batch.micros(torch.arange(len(batch.row_lengths)), max_tokens, finals=True):
                tokens, ends = self.values(micro)
                values[micro.index] = tokens.cpu()
                bootstraps[micro.segments] = ends.cpu()
        return Scores(values, bootstraps, self.reference_logprobs(batch, max_tokens) if reference else None)

    @torch.no_grad()
    def reference_logprobs(self, batch: Batch, max_tokens: int) -> Tensor | None:
        """[N], or None where there is no reference."""
        return None if self.reference is None else self._logprobs(self.reference, batch, max_tokens)

    @torch.no_grad()
    def logprobs(self, batch: Batch, max_tokens: int) -> Tensor:
        """[N] by the actor as it is now."""
        return self._logprobs(self.actor, batch, max_tokens)

    def _logprobs(self, model: PreTrainedModel, batch: Batch, max_tokens: int) -> Tensor:
        logprobs = torch.zeros(len(batch.logprobs))
        for micro in batch.micros(batch.trained_rows, max_tokens, finals=False):
            with self.precision:
                hidden = self._read(model.get_decoder(), micro)[0]
                logprobs[micro.index] = self._head(model, hidden, micro)[0].cpu()
        return logprobs

    def _read(self, trunk: PreTrainedModel, micro: Micro) -> tuple[Tensor, Tensor]:
        """Hidden states before each sampled token [n, D] and at the end of each next prompt [e, D]."""
        places = torch.cat([micro.before, micro.ends]).to(self.device)
        hidden = read(trunk, micro.line.to(self.device), places)
        return hidden[: len(micro.before)], hidden[len(micro.before) :]

    def _head(self, model: PreTrainedModel, hidden: Tensor, micro: Micro) -> tuple[Tensor, Tensor]:
        # A processor prepares every new shape of a product anew, so only few are let occur.
        filled = nn.functional.pad(hidden, (0, 0, 0, padded(len(hidden)) - len(hidden)))
        logits = model.lm_head(filled)[: len(hidden)].float() / self.temperature
        logprobs = torch.log_softmax(logits, dim=-1)
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        return logprobs.gather(1, micro.targets.to(self.device)[:, None])[:, 0], entropy


def _value_head(actor: PreTrainedModel) -> nn.Linear:
    """Values start at 0: no credit for noise."""
    head = nn.Linear(actor.config.get_text_config().hidden_size, 1)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head.to(actor.device)


def _values(head: nn.Linear, hidden: Tensor) -> Tensor:
    """[n] in fp32 whatever the arithmetic."""
    return nn.functional.linear(hidden.float(), head.weight, head.bias)[:, 0]
