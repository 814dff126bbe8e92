"""Reads a decoder of transformers over many rows at once: without padding, and only where somebody looks.

The rows lie behind one another in one line of tokens, so all layers but attention see no padding at all. What all
rows begin with, such as instructions, is read once, and the gradients of all rows meet there. Exact: what is left
out influences nothing that is seen.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from turnwise import fused
from turnwise.batch import Line
from turnwise.fused import padded

ATTENTION = "turnwise_line"
_AFTER_THE_HEAD = ("final_logit_softcapping", "logits_scaling", "logit_scale")
_WIDTH = 16  # rows side by side are a multiple of it wide, as a processor prepares every new shape of a product anew


def prepare(model: PreTrainedModel) -> None:
    """Teach a model to read lines.

    One whose attention is not the plain causal one, or whose logits are not what its head says, is a ValueError.
    """
    config = model.config.get_text_config()
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
    model.set_attn_implementation(ATTENTION)
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0  # what is trained must be what was sampled, where nothing is dropped


def read(trunk: PreTrainedModel, line: Line, places: Tensor) -> Tensor:
    """Hidden states [n, D] at some places [n] of a line; none of them lies in its shared beginning."""
    if fused.can_read(trunk) and len(places):
        return fused.read(trunk, line, places)
    missing = padded(len(line.tokens)) - len(line.tokens)
    tokens, positions = (nn.functional.pad(x, (0, missing))[None] for x in (line.tokens, line.positions))
    given: dict[str, Any] = {"input_ids": tokens, "position_ids": positions, "use_cache": False}
    # A mask of four dimensions is taken as it is, and the attention of a line looks at its rows instead.
    given |= {"attention_mask": tokens.new_zeros((1, 1, 1, 1), dtype=torch.bool), "rows": _Rows(line)}
    # Checkpointing runs layers again later, without hooks.
    if any(getattr(part, "gradient_checkpointing", False) for part in trunk.modules()):
        return trunk(**given).last_hidden_state[0, places]
    with last_mlp_at(trunk, (torch.zeros_like(places), places)):
        return trunk(**given).last_hidden_state[0, places]


class _Rows:
    """Where a line's tokens stand when its rows lie side by side, each behind the shared beginning."""

    def __init__(self, line: Line):
        lengths = line.lengths
        self.shared = line.shared
        width = -(-int(lengths.max()) // _WIDTH) * _WIDTH
        starts = line.shared + torch.cumsum(lengths, 0) - lengths
        columns = torch.arange(width, device=lengths.device)
        used = columns < lengths[:, None]
        self._places = torch.where(used, starts[:, None] + columns, 0)  # [b, W] in the line
        self.back = used.flatten().nonzero()[:, 0]  # [M] of b x W: the tokens behind the beginning
        self.mask = None
        if line.shared:
            seen = torch.arange(line.shared + width, device=lengths.device) <= line.shared + columns[:, None]
            self.mask = seen[None, None]  # [1, 1, W, P + W]

    def side_by_side(self, line: Tensor) -> Tensor:
        """[b, heads, W, d] of [1, heads, N, d]."""
        rows = _tokens(line).index_select(0, self._places.flatten())
        return rows.view(*self._places.shape, line.shape[1], -1).transpose(1, 2)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    rows: _Rows | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention of each row to itself and to the shared beginning; without `rows`, that of transformers.

    Queries are [1, heads, N, d], keys and values [1, groups, N, d]; returns [1, N, heads, d].
    """
    refused = [name for name in ("softcap", "s_aux", "position_bias") if options.get(name) is not None]
    if refused:
        raise ValueError(f"model: its attention needs {', '.join(refused)}, which reading in one line does not do")
    if rows is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
    q, k, v = (rows.side_by_side(x) for x in (query, key, value))
    beginning = []
    if rows.shared:
        first_q, first_k, first_v = (x[:, :, : rows.shared] for x in (query, key, value))
        beginning = [_tokens(_softmax_over(first_q, first_k, first_v, is_causal=True, scale=scaling))]
        k, v = (torch.cat([x.expand(len(own), -1, -1, -1), own], 2) for x, own in ((first_k, k), (first_v, v)))
    side = _softmax_over(q, k, v, attn_mask=rows.mask, is_causal=rows.mask is None, scale=scaling)
    line = torch.cat([*beginning, _tokens(side).index_select(0, rows.back)])  # [M, heads x d]
    line = nn.functional.pad(line, (0, 0, 0, query.shape[2] - len(line)))
    return line.unflatten(1, (query.shape[1], -1))[None], None


def _tokens(rows: Tensor) -> Tensor:
    """[b x W, heads x d] of [b, heads, W, d]: a token's numbers behind one another, which is fast to pick and put."""
    return rows.transpose(1, 2).flatten(0, 1).flatten(1)


def _softmax_over(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Attention [b, heads, W, d], of keys and values with fewer heads.

    In fp32 on a processor without tile matrices, whose backward pass takes twice as long in bf16.
    """
    kind, repeat = query.dtype, query.shape[1] // key.shape[1]
    exact = query.device.type == "cpu" and not torch.cpu._is_amx_tile_supported()
    query, key, value = (x.float() if exact else x for x in (query, key, value))
    key, value = (x.repeat_interleave(repeat, 1) if repeat > 1 else x for x in (key, value))
    with torch.autocast("cpu", enabled=False) if exact else nullcontext():
        return nn.functional.scaled_dot_product_attention(query, key, value, **options).to(kind)


AttentionInterface.register(ATTENTION, _attend)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


@contextmanager
def last_mlp_at(trunk: nn.Module, places: tuple[Tensor, Tensor]) -> Iterator[None]:
    """Run the last layer's perceptron at some places (row and column, [n] each) alone.

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
        return nn.functional.pad(given[0][places], (0, 0, 0, padded(len(places[0])) - len(places[0])))

    def scatter(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return torch.zeros_like(whole.pop(), dtype=output.dtype).index_put(places, output[: len(places[0])])

    hooks = mlp.register_forward_pre_hook(gather), mlp.register_forward_hook(scatter)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
