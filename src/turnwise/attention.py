"""Attention in a line: of each row to itself, and to what it begins with like another.

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
from turnwise.kernels import WIDTH, padded
from turnwise.lines import Line
from turnwise.sending import sent

ATTENTION = "turnwise_line"


class Layout:
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
    rows: Layout | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention of the tokens that each row adds to all of the row; without `rows`, that of transformers.

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
    """Rows behind one another: what each adds, and for it the keys and values of all of the row.

    What fills the line up is taken for the end of its last row, which sees nothing of it.
    """

    def __init__(self, line: Line, count: int):
        own, seen = line.own.clone(), line.lengths.clone()
        for lengths in (own, seen):
            lengths[-1] += count - len(line.tokens)
        self._paths = None
        if len(line.paths) > len(line.tokens):  # some tokens are of several rows
            paths = torch.cat([line.paths, torch.arange(len(line.tokens), count)])
            self._paths = sent(paths, line.tokens.device)
        self._cuts = flash.Cuts(own, seen, line.tokens.device)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        query, memory = query[0].transpose(0, 1), torch.cat([key[0], value[0]]).transpose(0, 1)
        return self.attend_flat(query, memory, scale)[None]

    def attend_flat(self, query: Tensor, memory: Tensor, scale: float | None) -> Tensor:
        """[N, heads, d] of queries [N, heads, d], and of keys and values [N, 2 groups, d]."""
        key, value = self._seen(memory).chunk(2, 1)
        return self._cuts.attend(query, key, value, scale)

    def _seen(self, line: Tensor) -> Tensor:
        """[K, 2 groups, d] of [N, 2 groups, d]"""
        return line if self._paths is None else _looked_up(line.flatten(1), self._paths).unflatten(1, line.shape[1:])


def pieces(own: Tensor, lengths: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """What rows add, the last `own` of their `lengths`, in pieces of `width`, row after row: row and reach of each [n].

    Then where in its row each token of it stands [n, W]; those behind its reach fill it up.
    """
    known, counts = lengths - own, -(-own // width)
    rows = torch.repeat_interleave(torch.arange(len(counts)), counts)
    starts = known[rows] + width * (torch.arange(len(rows)) - (torch.cumsum(counts, 0) - counts)[rows])
    return rows, torch.minimum(starts + width, lengths[rows]), starts[:, None] + torch.arange(width)


def locate(line: Line, rows: Tensor, columns: Tensor, reach: Tensor, nobody: int) -> Tensor:
    """[n, C] where in the line the columns [C] or [n, C] of rows are, as far as `reach` [n]; then `nobody`."""
    starts, used = (torch.cumsum(line.lengths, 0) - line.lengths)[rows], columns < reach[:, None]
    return torch.where(used, line.paths[torch.where(used, starts[:, None] + columns, 0)], nobody)


class _SideBySide:
    """Rows in pieces, and for each piece the keys and values of its row as far as it looks."""

    def __init__(self, line: Line):
        device = line.tokens.device
        width = padded(len(line.tokens) // len(line.own) + 1, WIDTH)  # so that not more than half is filled up
        rows, reach, columns = pieces(line.own, line.lengths, width)
        seen = torch.arange(padded(int(reach.max()), WIDTH))
        self._queries = locate(line, rows, columns, reach, 0).to(device)  # [n, W]
        self._keys = locate(line, rows, seen, reach, 0).to(device)  # [n, C]
        self._mask = (seen <= columns[:, :, None])[:, None].to(device)  # [n, 1, W, C]
        self._back = (columns < reach[:, None]).flatten().nonzero()[:, 0].to(device)  # [T] of n x W

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        q, k, v = (_rows(x, at) for x, at in ((query, self._queries), (key, self._keys), (value, self._keys)))
        side = _softmax_over(q, k, v, attn_mask=self._mask, scale=scale)
        line = _tokens(side).index_select(0, self._back)  # [T, heads x d]
        line = nn.functional.pad(line, (0, 0, 0, query.shape[2] - len(line)))
        return line.unflatten(1, (query.shape[1], -1))[None]


def _rows(line: Tensor, at: Tensor) -> Tensor:
    """[n, heads, W, d] of [1, heads, N, d] and places [n, W]."""
    rows = _looked_up(_tokens(line), at)
    return rows.unflatten(2, (line.shape[1], -1)).transpose(1, 2)


def _looked_up(table: Tensor, at: Tensor) -> Tensor:
    """[..., D] of [N, D] and places [...], some of which may be the same.

    As words are looked up: gradients meet in a sum of a fixed order, in fp32.
    """
    exact = table if table.is_cuda else table.float()  # a GPU adds up in fp32 by itself
    return nn.functional.embedding(at, exact).to(table.dtype)


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
