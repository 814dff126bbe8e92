"""Actor, critic and frozen reference, on any causal language model of transformers.

The shift by one between a token and the place that predicts it was made by the batch: hidden states are read at
`micro.before`, and there the head scores the token and the critic the state before it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy, deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from turnwise import fused
from turnwise.batch import Batch
from turnwise.kernels import logprobs_and_entropy, padded
from turnwise.lanes import Lanes
from turnwise.lines import Micro
from turnwise.lora import Adapters
from turnwise.sending import sent
from turnwise.trunk import Reader, prepare

R = TypeVar("R")
Role = Literal["actor", "critic", "reference"]

_LOGITS = 2**27  # computed at a time, several numbers in fp32 for each
_LOGITS_ON_GPU = 2**30  # where nothing is kept but them
_SMALL = 30_000_000  # parameters up to which a gradient for each core costs little, and cores have too little to share


@dataclass(frozen=True)
class Forward:
    """What one pass over a micro-batch says of its sampled tokens."""

    logprobs: Tensor  # [n]
    entropy: Tensor  # [n] nats
    values: Tensor | None  # [n]; None: no critic reads what the actor does


@dataclass(frozen=True)
class Scores:
    """What the models say of a batch before it is trained on."""

    values: Tensor  # [N]; zeros where there is no critic
    bootstraps: Tensor  # [E] likewise
    reference: Tensor | None  # [N] log-probs


class Policy(nn.Module):
    """`critic` is "separate" (a trunk of its own), "shared" (a head on the actor's trunk) or "none".

    With adapters actor and separate critic have one frozen trunk, and the reference is that trunk without them.
    """

    def __init__(
        self,
        actor: PreTrainedModel,
        critic: str = "separate",
        reference: bool = True,
        temperature: float = 1.0,
        precision: AbstractContextManager[object] | None = None,
        adapters: Adapters | None = None,
    ):
        super().__init__()
        prepare(actor)
        self.actor = actor
        self.adapters = adapters
        self.separate = critic == "separate"
        self.critic_trunk = deepcopy(actor.get_decoder()) if self.separate and adapters is None else None
        self.value_head = None if critic == "none" else _value_head(actor)
        self.has_reference = reference
        self.temperature = temperature
        self._precision = precision or nullcontext()
        self._spares = False  # memory, by computing activations twice
        self._readers: dict[Role, Reader] = {}
        # In a list it is no submodule: it is neither trained nor saved.
        self.references = [deepcopy(actor).requires_grad_(False).eval()] if reference and adapters is None else []

    @property
    def precision(self) -> AbstractContextManager[object]:
        """The arithmetic, anew each time, since an autocast forgets what was before it where it is entered twice."""
        return copy(self._precision)

    @property
    def device(self) -> torch.device:
        return self.actor.device

    @cached_property
    def lanes(self) -> Lanes:
        """In how many threads lines are read side by side: in one, where modules of transformers have our hooks."""
        alone = self.device.type != "cpu" or self.actor.num_parameters() > _SMALL
        apart = not alone and fused.can_read(self.actor.get_decoder())
        return Lanes(torch.get_num_threads() if apart else 1)

    def actor_parameters(self) -> list[nn.Parameter]:
        return list(self.actor.parameters()) if self.adapters is None else self.adapters.parameters("actor")

    def critic_parameters(self) -> list[nn.Parameter]:
        own = [parameter for part in (self.critic_trunk, self.value_head) if part for parameter in part.parameters()]
        return own if self.adapters is None else [*self.adapters.parameters("critic"), *own]

    def trained_parameters(self) -> list[nn.Parameter]:
        return [*self.actor_parameters(), *self.critic_parameters()]

    def weights(self) -> Mapping[str, Tensor]:
        """Of the actor, as an engine elsewhere needs them."""
        return self.actor.state_dict() if self.adapters is None else self.adapters.merged("actor")

    def save(self, folder: Path) -> None:
        """The actor as a Hugging Face folder `model`; where only an adapter was trained, that too, as `adapter`."""
        if self.adapters is not None:
            self.adapters.save("actor", folder / "adapter")
            # One by one, since a GPU may have no room for all of them beside the model.
            tied = self.actor.all_tied_weights_keys  # copies of which would no longer be known as such
            weights = {name: weight.cpu() for name, weight in self.weights().items() if name not in tied}
        else:
            weights = dict(self.weights())
        self.actor.save_pretrained(folder / "model", state_dict=weights)

    def checkpoint_activations(self) -> None:
        """Hold less between forward and backward pass, and compute it again."""
        self._spares = True
        options: dict[str, Any] = {"use_reentrant": False}
        if self.adapters is not None:
            options["context_fn"] = self.adapters.checkpointed
        for model in (self.actor, self.critic_trunk):
            if model is not None:
                renamed: Any = getattr(model, "activation_checkpointing_enable", None)  # in transformers 5.20
                (renamed or model.gradient_checkpointing_enable)(options)

    @property
    def critic_role(self) -> Role:
        """Whose trunk values are read by."""
        return "critic" if self.separate else "actor"

    @contextmanager
    def at_work(self, role: Role) -> Iterator[None]:
        """While its weights stay as they are: what all lines need of them is made once."""
        with self._trunk(role) as trunk:
            with self.precision:
                self._readers[role] = Reader(trunk, keep=not self._spares)
            try:
                yield
            finally:
                del self._readers[role]

    def micros(self, batch: Batch, rows: Tensor, max_tokens: int, finals: bool = False) -> list[Micro]:
        """The rows, and with `finals` the next prompts, in lines for all lanes."""
        return list(batch.micros(rows, max_tokens, finals, self.lanes.count))

    def backward(self, role: Role, loss: Callable[[Micro], tuple[Tensor, R]], micros: Sequence[Micro]) -> list[R]:
        """Add the gradients of the losses of what a model reads; returns what comes with these."""
        with self.at_work(role):
            return self.lanes.backward(loss, micros, self.trained_parameters())

    def forward(self, micro: Micro) -> Forward:
        """Log-probs and entropies of the sampled tokens, and by a shared critic their values, with gradients."""
        with self.precision:
            hidden = self._read("actor", micro)[0]
            logprobs, entropy = self._head(self.actor, hidden, micro)
        head = None if self.separate else self.value_head
        return Forward(logprobs, entropy, None if head is None else _values(head, hidden))

    def values(self, micro: Micro) -> tuple[Tensor, Tensor]:
        """Values of the sampled tokens [n] and of the next prompts [e]; gradients reach the critic alone."""
        with self.precision:
            if self.separate:
                before, ends = self._read("critic", micro)
            else:
                with torch.no_grad():
                    before, ends = self._read("actor", micro)
        assert self.value_head is not None
        return _values(self.value_head, before), _values(self.value_head, ends)

    @torch.no_grad()
    def score(self, batch: Batch, max_tokens: int, reference: bool = True) -> Scores:
        """Values before each sampled token and of each next prompt; log-probs by the reference."""
        count = len(batch.logprobs)
        values, bootstraps = torch.zeros(count), torch.zeros(len(batch.segments))
        if self.value_head is not None:
            every = torch.arange(len(batch.row_lengths))
            micros = self.micros(batch, every, max_tokens, finals=True)
            with self.at_work(self.critic_role):
                found = self.lanes.map(self.values, micros)
            for micro, (tokens, ends) in zip(micros, found, strict=True):
                values[micro.index] = tokens.cpu()
                bootstraps[micro.segments] = ends.cpu()
        return Scores(values, bootstraps, self.reference_logprobs(batch, max_tokens) if reference else None)

    @torch.no_grad()
    def reference_logprobs(self, batch: Batch, max_tokens: int) -> Tensor | None:
        """[N], or None where there is no reference."""
        return self._logprobs("reference", batch, max_tokens) if self.has_reference else None

    @torch.no_grad()
    def logprobs(self, batch: Batch, max_tokens: int) -> Tensor:
        """[N] by the actor as it is now."""
        return self._logprobs("actor", batch, max_tokens)

    def _logprobs(self, role: Role, batch: Batch, max_tokens: int) -> Tensor:
        logprobs = torch.zeros(len(batch.logprobs))
        model = self.references[0] if role == "reference" and self.references else self.actor

        def score(micro: Micro) -> Tensor:
            with self.precision:
                return self._head(model, self._read(role, micro)[0], micro)[0]

        micros = self.micros(batch, batch.trained_rows, max_tokens)
        with self.at_work(role):
            every = self.lanes.map(score, micros)
        for micro, found in zip(micros, every, strict=True):
            logprobs[micro.index] = found.cpu()
        return logprobs

    def _read(self, role: Role, micro: Micro) -> tuple[Tensor, Tensor]:
        """Hidden states before each sampled token [n, D] and at the end of each next prompt [e, D]."""
        if role not in self._readers:
            with self.at_work(role):
                return self._read(role, micro)
        places = sent(torch.cat([micro.before, micro.ends]), self.device)
        hidden = self._readers[role](micro.line.to(self.device), places)
        return hidden[: len(micro.before)], hidden[len(micro.before) :]

    @contextmanager
    def _trunk(self, role: Role) -> Iterator[PreTrainedModel]:
        if self.adapters is not None:
            with self.adapters.use(None if role == "reference" else role):
                yield self.actor.get_decoder()
        elif role == "critic":
            assert self.critic_trunk is not None
            yield self.critic_trunk
        else:
            yield (self.references[0] if role == "reference" else self.actor).get_decoder()

    def _head(self, model: PreTrainedModel, hidden: Tensor, micro: Micro) -> tuple[Tensor, Tensor]:
        """Log-probs of the targets and entropies, [n] each."""
        targets = sent(micro.targets, self.device)
        most = _LOGITS_ON_GPU if self.device.type == "cuda" else _LOGITS
        size = most // model.config.get_text_config().vocab_size
        if len(hidden) <= size:
            return self._logprobs_and_entropy(model, hidden, targets)
        # All logits of a long line and a large vocabulary would take more memory than the layers do.
        parts = zip(hidden.split(size), targets.split(size), strict=True)
        read = [checkpoint(self._logprobs_and_entropy, model, *part, use_reentrant=False) for part in parts]
        logprobs, entropy = zip(*read, strict=True)
        return torch.cat(logprobs), torch.cat(entropy)

    def _logprobs_and_entropy(self, model: PreTrainedModel, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        # A processor prepares every new shape of a product anew, so only few are let occur.
        count, missing = len(hidden), padded(len(hidden)) - len(hidden)
        logits = model.lm_head(nn.functional.pad(hidden, (0, 0, 0, missing)))
        logprobs, entropy = logprobs_and_entropy(logits, nn.functional.pad(targets, (0, missing)), self.temperature)
        return logprobs[:count], entropy[:count]


def _value_head(actor: PreTrainedModel) -> nn.Linear:
    """Values start at 0: no credit for noise."""
    head = nn.Linear(actor.config.get_text_config().hidden_size, 1)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head.to(actor.device)


def _values(head: nn.Linear, hidden: Tensor) -> Tensor:
    """[n] in fp32 whatever the arithmetic."""
    return nn.functional.linear(hidden.float(), head.weight, head.bias)[:, 0]
