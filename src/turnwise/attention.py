"""Attention in a line: of each row to itself, and to the beginning that all rows share.

Flash attention takes the rows behind one another, as they lie; for any other they are laid side by side, padded.
"""

from contextlib import nullcontext
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from turnwise import flash
from turnwise.batch import Line, spans
from turnwise.kernels import WIDTH, padded
from turnwise.sending import sent

ATTENTION = "turnwise_line"


class Rows:
    """How the rows of a line are laid out for attention, worked out once for all layers."""

    def __init__(self, line: Line, count: int):
        """`count` tokens are computed, what fills the line up included."""
        self._line, self._count = line, count

    @cached_property
    def in_turn(self) -> "_InTurn":
        return _InTurn(self._line, self._count)

    @cached_property
    def side_by_side(self) -> "_SideBySide":
        return _SideBySide(self._line)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    rows: Rows | None = None,
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
    layout = rows.in_turn if flash.takes(query) else rows.side_by_side
    return layout.attend(query, key, value, scaling), None


AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


class _InTurn:
    """Rows behind one another, where the beginning is a row too, and its keys and values stand before those of each.

    What fills the line up is taken for the end of its last row, which sees nothing of it.
    """

    def __init__(self, line: Line, count: int):
        shared, device = line.shared, line.tokens.device
        own = line.lengths.clone()
        own[-1] += count - len(line.tokens)
        seen = own + shared
        self._rows, self._shared = len(own), shared
        if shared:
            copies = count + shared * torch.arange(self._rows)
            starts = torch.stack([copies, shared + torch.cumsum(own, 0) - own], 1).flatten()
            lengths = torch.stack([torch.full_like(own, shared), own], 1).flatten()
            # [K] of the line's tokens and, behind them, a copy of its beginning for each row
            self._order = sent(torch.cat([torch.arange(shared), spans(starts, lengths)]), device)
            own, seen = (nn.functional.pad(x, (1, 0), value=shared) for x in (own, seen))
        self._cuts = flash.Cuts(own, seen, device)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))
        return self.attend_flat(query, key, value, scale)[None]

    def attend_flat(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """[N, heads, d] of queries [N, heads, d], keys and values [N, groups, d]."""
        if self._shared:
            key, value = self._seen(key), self._seen(value)
        return self._cuts.attend(query, key, value, scale)

    def _seen(self, line: Tensor) -> Tensor:
        """[K, groups, d] of [N, groups, d].

        Copies are picked once each, so that gradients meet in a sum of a fixed order, and not as threads come by.
        """
        copies = line[: self._shared].repeat(self._rows, 1, 1)
        return torch.cat([line, copies]).index_select(0, self._order)


class _SideBySide:
    """Rows each in a line of its own, behind the shared beginning."""

    def __init__(self, line: Line):
        lengths, device = line.lengths, line.tokens.device
        self._shared = line.shared
        width = padded(int(lengths.max()), WIDTH)
        starts = line.shared + torch.cumsum(lengths, 0) - lengths
        columns = torch.arange(width)
        used = columns < lengths[:, None]
        self._places = torch.where(used, starts[:, None] + columns, 0).to(device)  # [b, W] in the line
        self._back = used.flatten().nonzero()[:, 0].to(device)  # [M] of b x W: the tokens behind the beginning
        self._mask = None
        if line.shared:
            seen = torch.arange(line.shared + width) <= line.shared + columns[:, None]
            self._mask = seen[None, None].to(device)  # [1, 1, W, P + W]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        q, k, v = (self._rows(x) for x in (query, key, value))
        beginning = []
        if self._shared:
            first_q, first_k, first_v = (x[:, :, : self._shared] for x in (query, key, value))
            beginning = [_tokens(_softmax_over(first_q, first_k, first_v, is_causal=True, scale=scale))]
            k, v = (torch.cat([x.expand(len(own), -1, -1, -1), own], 2) for x, own in ((first_k, k), (first_v, v)))
        side = _softmax_over(q, k, v, attn_mask=self._mask, is_causal=self._mask is None, scale=scale)
        line = torch.cat([*beginning, _tokens(side).index_select(0, self._back)])  # [M, heads x d]
        line = nn.functional.pad(line, (0, 0, 0, query.shape[2] - len(line)))
        return line.unflatten(1, (query.shape[1], -1))[None]

    def _rows(self, line: Tensor) -> Tensor:
        """[b, heads, W, d] of [1, heads, N, d]."""
        rows = _tokens(line).index_select(0, self._places.flatten())
        return rows.view(*self._places.shape, line.shape[1], -1).transpose(1, 2)


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
