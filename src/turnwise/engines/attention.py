"""Attention of new tokens to all that their rows hold, in the forward pass for sampling.

For a few tokens a row a processor has loops; else it is PyTorch's, for which rows are padded on the right.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from turnwise.engines.cache import Cache
from turnwise.threads import has_threads, use_threads

_SHORT = 64  # new tokens of a row up to which loops are no slower than PyTorch
_FEW = 8  # and up to which two products are faster than its attention
_ALONE = 256  # scores of a head up to which one thread is faster than several
_MANY = 8  # rows that are worth reading in two parts, so that less of them is padding

Attention = Callable[[Tensor, int, Tensor | None], Tensor]
"""Keeps a layer's new keys and values, and finds what the queries look at, or those of the chosen tokens [R] alone.

Queries, keys and values are [N, heads + 2 x groups, d]; what is found is [N, heads x d] or [R, heads x d].
"""


def attention_of(positions: Tensor, counts: Sequence[int], groups: int, kept: Cache, bf16: bool) -> Attention:
    """For so many new tokens of each of R rows, at positions [N]; with `bf16` a GPU computes it in that.

    The chosen tokens are the last ones of all rows.
    """
    if max(counts) <= _SHORT and positions.device.type == "cpu" and has_threads():
        return _Loops(positions, counts, groups, kept)
    return _Padded(positions, counts, groups, kept, bf16 and positions.is_cuda)


class _Loops:
    """Reads each row as far as it goes."""

    def __init__(self, positions: Tensor, counts: Sequence[int], groups: int, kept: Cache):
        from turnwise.engines.loops import attend

        use_threads(len(positions) * kept.columns > _ALONE)
        self._attend, self._groups, self._kept = attend, groups, kept
        self._positions, self._starts = positions.numpy(), np.cumsum([0, *counts])
        self._rows = np.array(kept.row_numbers())

    def __call__(self, parts: Tensor, layer: int, chosen: Tensor | None) -> Tensor:
        keys, values = self._kept.tensors(layer, self._groups, parts)
        found = parts.new_empty((len(parts), parts.shape[1] - 2 * self._groups, parts.shape[2]))
        held = keys.mT.numpy(), values.numpy()
        self._attend(parts.numpy(), self._positions, self._starts, self._rows, *held, found.numpy())
        return (found if chosen is None else found[chosen]).flatten(1)


class _Padded:
    """Reads R rows of T new tokens, all of them as far as the longest goes."""

    def __init__(self, positions: Tensor, counts: Sequence[int], groups: int, kept: Cache, bf16: bool):
        self._positions, self._groups, self._kept, self._bf16 = positions, groups, kept, bf16
        self._shape = rows, times = len(counts), max(counts)
        self._places = None if min(counts) == times else _places(counts).to(positions.device)  # [N] among R x T
        self._parts = [(slice(rows), times, kept.columns)]  # rows of like length: their T and C
        if rows >= _MANY and positions.device.type == "cpu":  # on a GPU the numbers would have to be waited for
            self._parts = _halves(counts, positions)
        at = self._rows(positions)
        # On a GPU passes of one token are recorded: no number is looked at.
        self._mask = self._mask_at(at) if times <= _FEW or at[:, 0].any() else None  # None: the causal one

    def __call__(self, parts: Tensor, layer: int, chosen: Tensor | None) -> Tensor:
        query, memory = parts.split((parts.shape[1] - 2 * self._groups, 2 * self._groups), 1)
        keys, values = self._kept.keep(memory.unflatten(1, (2, -1)), layer)
        if chosen is not None:
            mask = self._mask_at(self._positions[chosen, None])
            return self._of_tokens(query[chosen, None], keys, values, mask).flatten(1)
        if self._shape[1] > _FEW:
            found = self._of_prompts(self._rows(query), keys, values)
        else:
            assert self._mask is not None
            found = self._of_tokens(self._rows(query), keys, values, self._mask)
        found = found.flatten(0, 1).flatten(1)
        return found if self._places is None else found[self._places]

    def _rows(self, flat: Tensor) -> Tensor:
        """[R, T, ...] of [N, ...], with zeros where there is no token."""
        if self._places is not None:
            filled = flat.new_zeros((self._shape[0] * self._shape[1], *flat.shape[1:]))
            flat = filled.index_copy_(0, self._places, flat)
        return flat.unflatten(0, self._shape)

    def _mask_at(self, positions: Tensor) -> Tensor:
        """What is added to scores [R, 1, T, C] at positions [R, T]: minus infinity where nobody looks, else zero."""
        columns = torch.arange(self._kept.columns, device=positions.device)
        return torch.where(columns <= positions[:, None, :, None], 0.0, -torch.inf)

    def _of_prompts(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attention of queries [R, T, heads, d] over keys and values [R, groups, C, d], as [R, T, heads, d]."""
        found, repeat = torch.empty_like(query), query.shape[2] // self._groups
        for rows, times, columns in self._parts:
            q, k, v = query[rows, :times].transpose(1, 2), keys[rows, :, :columns], values[rows, :, :columns]
            k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
            mask = None if self._mask is None else self._mask[rows, :, :times, :columns]
            if self._bf16:  # a processor computes it in fp32, where bf16 is not always faster
                q, k, v = q.bfloat16(), k.bfloat16(), v.bfloat16()
                mask = None if mask is None else mask.bfloat16()
            attention = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
            found[rows, :times] = attention.transpose(1, 2)
        return found

    def _of_tokens(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """The same for a few tokens a row, where two products are faster."""
        rows, times, heads, size = query.shape
        repeat = heads // self._groups
        query = query.unflatten(2, (self._groups, repeat)).transpose(1, 2).reshape(-1, times * repeat, size)
        keys, values = keys.flatten(0, 1), values.flatten(0, 1)
        scores = torch.bmm(query, keys.mT).view(rows, self._groups, times, repeat, -1)
        scores = torch.add(mask[:, :, :, None], scores, alpha=size**-0.5)
        found = torch.bmm(scores.softmax(-1).view(len(query), times * repeat, -1), values)
        return found.view(rows, self._groups, times, repeat, size).transpose(1, 2).flatten(2, 3)


def _places(counts: Sequence[int]) -> Tensor:
    """[N] where among R x T the tokens are, of so many a row."""
    return (torch.arange(max(counts)) < torch.tensor(counts)[:, None]).flatten().nonzero()[:, 0]


def _halves(counts: Sequence[int], positions: Tensor) -> list[tuple[slice, int, int]]:
    """Halves of the rows, with the most new tokens and the most columns of each; positions are [N]."""
    half, reach = -(-len(counts) // 2), 1 + positions[np.cumsum(counts) - 1]
    halves = slice(half), slice(half, len(counts))
    return [(rows, max(counts[rows]), int(reach[rows].max())) for rows in halves]
