"""Reads a decoder of transformers over many rows at once: without padding, and only where somebody looks.

The rows lie behind one another in one line of tokens, so all layers but attention see no padding at all. What some
rows begin with, such as instructions, or the prompt of a group, is read once, and the gradients of these rows meet
there. Exact: what is left out influences nothing that is seen.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from turnwise import fused
from turnwise.attention import ATTENTION, Layout
from turnwise.kernels import padded
from turnwise.lines import Line, paths

_AFTER_THE_HEAD = ("final_logit_softcapping", "logits_scaling", "logit_scale")


def prepare(model: PreTrainedModel) -> None:
    """Teach a model to read lines.

    One whose attention is not the plain causal one, or whose logits are not what its head says, is a ValueError.
    """
    config = model.config.get_text_config()
    if config._attn_implementation == ATTENTION:
        return  # it has learned to
    plain = "sliding_attention" if getattr(config, "sliding_window", None) else "full_attention"  # of older configs
    kinds = set(getattr(config, "layer_types", None) or [plain])
    if kinds != {"full_attention"} or not model._supports_sdpa or not model._can_set_attn_implementation():
        raise ValueError(
            f"model: {config.model_type} has attention of its own ({', '.join(sorted(kinds))}); "
            "only models with plain full attention in every layer can be trained and sampled in this process"
        )
    changed = [name for name in _AFTER_THE_HEAD if getattr(config, name, None) not in (None, 1)]
    if changed:
        raise ValueError(
            f"model: {config.model_type} changes its logits ({', '.join(changed)}), which is not done here; "
            "choose a model that takes them as its head gives them"
        )
    if (getattr(config, "rope_parameters", None) or {}).get("rope_type") == "longrope":
        raise ValueError(
            f"model: {config.model_type} has positions (longrope) whose angles depend on the longest text that is read "
            "with others; choose a model whose positions are each text's own"
        )
    model.set_attn_implementation(ATTENTION)
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0  # what is trained must be what was sampled, where nothing is dropped
    with tried(model):
        _read_a_line(model)


@contextmanager
def tried(model: PreTrainedModel) -> Iterator[None]:
    """A ValueError that names the model where it fails in here: its modules may know of nothing that we do."""
    try:
        yield
    except Exception as error:
        raise ValueError(
            f"model: {model.config.get_text_config().model_type} cannot be trained and sampled in this process "
            f"({error}); choose another kind of model, such as Llama, Mistral, Qwen2 or Qwen3"
        ) from error


def alike(some: Tensor, others: Tensor) -> bool:
    """Whether logits differ by no more than rounding does in any arithmetic."""
    return torch.allclose(some.float(), others.float(), rtol=0, atol=0.01 * float(others.abs().max()))


@torch.no_grad()
def _read_a_line(model: PreTrainedModel) -> None:
    """A ValueError where a line is read otherwise than its rows are: modules may not hand on what they are told."""
    rows, places = torch.tensor([[0, 1, 2, 3], [0, 1, 4, 5]]), torch.tensor([3, 5])
    alone = torch.cat([model(row[None].to(model.device), use_cache=False).logits[0, -1:] for row in rows])
    if not alone.isfinite().all():
        raise ValueError("its weights give no finite numbers")
    tokens, positions = torch.arange(6), torch.tensor([0, 1, 2, 3, 2, 3])
    own, known = torch.tensor([4, 2]), torch.tensor([0, 2])
    line = Line(tokens, positions, own, own + known, paths(own, known)).to(model.device)
    together = model.lm_head(Reader(model.get_decoder())(line, places.to(model.device)))
    if not alike(together, alone):
        raise ValueError("it reads texts that lie behind one another otherwise than each by itself")


class Reader:
    """Of a decoder, while its weights and the adapter in use stay as they are."""

    def __init__(self, trunk: PreTrainedModel, keep: bool = False):
        """`keep` what its products need of its weights, from line to line, which takes as much memory as they do."""
        self._trunk = trunk
        self._fused = fused.Reader(trunk, keep) if fused.can_read(trunk) else None

    def __call__(self, line: Line, places: Tensor) -> Tensor:
        """Hidden states [n, D] at some places [n] of a line."""
        return self._fused(line, places) if self._fused and len(places) else self._by_modules(line, places)

    def _by_modules(self, line: Line, places: Tensor) -> Tensor:
        trunk, count = self._trunk, padded(len(line.tokens))
        missing = count - len(line.tokens)
        tokens, positions = (nn.functional.pad(x, (0, missing))[None] for x in (line.tokens, line.positions))
        given: dict[str, Any] = {"input_ids": tokens, "position_ids": positions, "use_cache": False}
        # A mask of four dimensions is taken as it is, and the attention of a line looks at its rows instead.
        given |= {"attention_mask": tokens.new_zeros((1, 1, 1, 1), dtype=torch.bool), "rows": Layout(line, count)}
        # Checkpointing runs layers again later, without hooks.
        if any(getattr(part, "gradient_checkpointing", False) for part in trunk.modules()):
            return trunk(**given).last_hidden_state[0, places]
        with last_mlp_at(trunk, (torch.zeros_like(places), places)):
            return trunk(**given).last_hidden_state[0, places]


@contextmanager
def last_mlp_at(trunk: nn.Module, places: tuple[Tensor, Tensor]) -> Iterator[None]:
    """Run the last layer's MLP at some places (row and column, [n] each) alone.

    Elsewhere the hidden states are then meaningless.
    """
    layers = getattr(trunk, "layers", None)
    mlp = getattr(layers[-1], "mlp", None) if isinstance(layers, nn.ModuleList) else None
    if not isinstance(mlp, nn.Module):
        yield  # an architecture with other names is read whole
        return
    whole: list[Tensor] = []

    def gather(_: nn.Module, given: tuple[Tensor, ...]) -> Tensor:
        whole.append(given[0])
        return nn.functional.pad(given[0][places], (0, 0, 0, padded(len(places[0])) - len(places[0])))[None]

    def scatter(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return torch.zeros_like(whole.pop(), dtype=output.dtype).index_put(places, output[0, : len(places[0])])

    hooks = mlp.register_forward_pre_hook(gather), mlp.register_forward_hook(scatter)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
