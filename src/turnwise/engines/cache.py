"""The keys and values that a model has left behind, kept while its weights stay the same."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from turnwise.engines.replay import Replay

_ROOM = 64  # columns are added in such steps


class Cache:
    """A row a request: per layer keys and values [rows, heads, columns, size]. Stands in for a transformers cache.

    The first `busy` rows are in use. The others rest: they keep what they hold for prompts that begin with it.
    """

    def __init__(self, device: torch.device) -> None:
        self.busy = 0
        self.replays: dict[int, Replay] = {}  # of passes over so many rows of the tensors as they are now
        self._device = device
        self._held: list[list[int]] = []  # the ids whose keys and values a row holds
        self._rested: list[int] = []  # since when a row rests
        self._clock = 0
        self._layers: list[tuple[Tensor, Tensor]] = []
        self._rows = self._columns = 0  # that the tensors must have
        self.first = self.columns = 0  # row of those that are read now, and how many columns of them are looked at
        self._positions = torch.empty(0)  # [N] of what is new
        self._counts: Sequence[int] = ()  # [R] how many of each row are
        self._into = torch.empty(0)  # [N] the rows of what is new

    def clear(self) -> None:
        """Forget all tokens, and what was recorded of a model; keep the tensors."""
        self.busy, self._held, self._rested = 0, [], []
        self.replays.clear()

    def reserve(self, rows: int, columns: int) -> None:
        """Be large enough for so many busy rows of so many tokens, so that the tensors grow once and not row by row."""
        self._rows, self._columns = max(self._rows, rows), max(self._columns, columns)
        self._fit()

    def admit(self, prompt: Sequence[int]) -> Sequence[int]:
        """Take the next row for a prompt. Returns the rest that must be read.

        That is one token at least, since what follows the last one is wanted.
        """
        donor, known = self.find(prompt)
        resting = range(self.busy, len(self._held))
        if donor in resting and known == len(self._held[donor]):
            row = donor  # the prompt goes on from there
        elif resting:
            row = min(resting, key=self._rested.__getitem__)
        else:
            row = len(self._held)
            self._held.append([])
            self._rested.append(0)
        if row == donor:
            self._swap(row, self.busy)
        else:  # what the row held is given up
            self._copy(self.busy, row, len(self._held[self.busy]))
            self._held[row], self._rested[row] = self._held[self.busy], self._rested[self.busy]
            self._copy(row if donor == self.busy else donor, self.busy, known)
        self._held[self.busy] = list(prompt[:known])
        self.busy += 1
        return prompt[known:]

    def find(self, prompt: Sequence[int]) -> tuple[int, int]:
        """The row that holds most of a prompt's beginning, and how many tokens; the last one is not looked for."""
        donor, known = 0, 0
        for row, held in enumerate(self._held):
            if held[known : known + 1] == prompt[known : known + 1] and held[:known] == prompt[:known]:
                donor, known = row, _common(held, prompt[:-1], known)
        return donor, known

    def forget(self, row: int, tokens: int) -> None:
        """Take back so many of the last tokens; what they left is overwritten before anybody looks there."""
        held = self._held[row]
        del held[len(held) - tokens :]

    def release(self, row: int) -> None:
        """Let a row rest; the last busy one takes its place."""
        self._clock += 1
        self._rested[row] = self._clock
        self.busy -= 1
        self._swap(row, self.busy)

    def extend(self, first: int, tokens: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Open columns for the next tokens of R rows from `first` on, N in all; returns their ids and positions [N]."""
        rows = self._held[first : first + len(tokens)]
        places = [range(len(held), len(held) + len(new)) for held, new in zip(rows, tokens, strict=True)]
        self._columns = max(self._columns, *(reach.stop for reach in places))
        self._fit()
        for held, new in zip(rows, tokens, strict=True):
            held += new
        both = np.array([list(chain(*tokens)), list(chain(*places))])  # faster than a tensor is made of lists
        ids, positions = torch.as_tensor(both, device=self._device)
        self.aim(first, positions, [len(new) for new in tokens], max(reach.stop for reach in places))
        return ids, positions

    def aim(self, first: int, positions: Tensor, counts: Sequence[int], columns: int | None = None) -> None:
        """Keep so many new tokens of each row from `first` on at positions [N]; so many columns are looked at."""
        self.first, self.columns = first, columns or self._columns
        self._positions, self._counts = positions, counts

    def grow(self, tokens: Sequence[int]) -> tuple[list[int], list[int]]:
        """Open a column for the next token of each busy row.

        Returns ids and positions of a power of two of rows, or all of them: a few numbers of rows come again and again.
        What stands in the others lies behind their own, where no token looks before it is overwritten.
        """
        rows = min(1 << (len(tokens) - 1).bit_length(), len(self._held))
        positions = [len(held) for held in self._held[:rows]]
        self._columns = max(self._columns, 1 + max(positions))
        self._fit()
        for held, token in zip(self._held, tokens, strict=False):
            held.append(token)
        return [*tokens, *[0] * (rows - len(tokens))], positions

    def keep(self, new: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Keep a layer's new keys and values [N, 2, heads, size]; returns those looked at, [R, heads, C, size] each."""
        if layer == 0:
            self._into = torch.arange(self.first, self.first + len(self._counts), device=new.device)
            if len(new) > len(self._counts):
                counts = torch.tensor(self._counts, device=new.device)
                self._into = self._into.repeat_interleave(counts, output_size=len(new))
        both = self.tensors(layer, new.shape[2], new)
        for held, part in zip(both, new.unbind(1), strict=True):
            held[self._into, :, self._positions] = part.to(held.dtype)
        keys, values = (held[self.first : self.first + len(self._counts), :, : self.columns] for held in both)
        return keys, values

    def tensors(self, layer: int, heads: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values that are held of a layer [rows, heads, columns, size], of the kind and size of these."""
        if layer == len(self._layers):
            self._layers.append(self._new(heads, like))
        return self._layers[layer]

    def _new(self, heads: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Zeros, since the unwritten is read under a mask, and 0 x NaN is NaN."""
        shape = self._rows, heads, self._columns, like.shape[-1]
        if like.device.type == "cpu":  # column behind column, as loops read keys
            return like.new_zeros((*shape[:2], shape[3], shape[2])).mT, like.new_zeros(shape)
        return like.new_zeros(shape), like.new_zeros(shape)

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: object, **__: object) -> tuple[Tensor, ...]:
        """Called by the attention of each layer of transformers with the new keys and values [R, heads, T, size]."""
        new = torch.stack([keys, values], 1).permute(0, 3, 1, 2, 4)
        chosen = [part[:count] for part, count in zip(new, self._counts, strict=True)]
        return self.keep(torch.cat(chosen), layer)

    def _fit(self) -> None:
        """Make the tensors large enough."""
        self._rows = max(self._rows, len(self._held))
        self._columns = -(-self._columns // _ROOM) * _ROOM
        height, _, width, _ = self._layers[0][0].shape if self._layers else (self._rows, 0, self._columns, 0)
        if height >= self._rows and width >= self._columns:
            return
        self.replays.clear()
        if height < self._rows:
            self._rows = max(self._rows, height * 3 // 2)
        for number, layer in enumerate(self._layers):  # one after the other, as a second copy of all may not fit
            self._layers[number] = self._new(layer[0].shape[1], layer[0])
            for old, new in zip(layer, self._layers[number], strict=True):
                new[:height, :, :width] = old

    def _copy(self, one: int, other: int, tokens: int) -> None:
        if one != other and tokens:
            for tensor in chain(*self._layers):
                tensor[other, :, :tokens] = tensor[one, :, :tokens]

    def _swap(self, one: int, other: int) -> None:
        if one != other:
            width = max(len(self._held[one]), len(self._held[other]))
            for tensor in chain(*self._layers):
                here, there = tensor[one, :, :width], tensor[other, :, :width]
                kept = here.clone()
                here.copy_(there)
                there.copy_(kept)
            self._held[one], self._held[other] = self._held[other], self._held[one]
            self._rested[one], self._rested[other] = self._rested[other], self._rested[one]


def _common(one: Sequence[int], other: Sequence[int], known: int) -> int:
    """How many tokens both begin with; so many are known. Halves are compared, as Python compares them in C."""
    counts = range(known + 1, 1 + min(len(one), len(other)))
    return known + bisect_left(counts, True, key=lambda count: one[known:count] != other[known:count])
