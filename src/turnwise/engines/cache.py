"""The keys and values that a model has left behind, kept while its weights stay the same."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from turnwise.engines.replay import Replay

_ROOM = 64  # columns are added in such steps


@dataclass
class _Row:
    number: int  # of the tensors' rows
    held: list[int] = field(default_factory=list)  # the ids whose keys and values are there
    rested: int = 0  # since when it rests


class Cache:
    """A row a request: per layer keys and values [rows, heads, columns, size]. Stands in for a transformers cache.

    The first `busy` rows are in use. The others rest: they keep what they hold for prompts that begin with it. Rows
    come and go without a number being moved; whoever reads those of one pass as one tensor has them lined up first.
    """

    def __init__(self, device: torch.device) -> None:
        self.busy = 0
        self.replays: dict[int, Replay] = {}  # of passes over so many rows of the tensors as they are now
        self._device = device
        self._rows: list[_Row] = []
        self._clock = 0
        self._layers: list[tuple[Tensor, Tensor]] = []
        self._height = self._width = 0  # that the tensors must have
        self.columns = 0  # that are looked at now
        self._first = 0  # of the rows that are read now
        self._positions = torch.empty(0)  # [N] of what is new
        self._counts: Sequence[int] = ()  # [R] how many of each row are
        self._into = torch.empty(0)  # [N] the rows of what is new

    def clear(self) -> None:
        """Forget all tokens; keep the tensors."""
        self.busy, self._rows = 0, []

    def reserve(self, rows: int, columns: int) -> None:
        """Be large enough for so many busy rows of so many tokens, so that the tensors grow once and not row by row."""
        self._height, self._width = max(self._height, rows), max(self._width, columns)
        self._fit()

    def admit(self, prompt: Sequence[int]) -> Sequence[int]:
        """Take the next row for a prompt. Returns the rest that must be read.

        That is one token at least, since what follows the last one is wanted.
        """
        donor, known = self._find(prompt)
        place = self._place_for(donor, known)
        row = self._rows[place]
        if donor is not None and row.held[:known] != prompt[:known]:
            for tensor in chain(*self._layers):
                tensor[row.number, :, :known] = tensor[donor.number, :, :known]
        row.held = list(prompt[:known])
        self._exchange(place, self.busy)
        self.busy += 1
        return prompt[known:]

    def known(self, prompt: Sequence[int]) -> int:
        """With how many of a prompt's tokens some row begins; the last one is not looked for."""
        return self._find(prompt)[1]

    def forget(self, row: int, tokens: int) -> None:
        """Take back so many of the last tokens; what they left is overwritten before anybody looks there."""
        held = self._rows[row].held
        del held[len(held) - tokens :]

    def release(self, row: int) -> None:
        """Let a row rest; the last busy one takes its place."""
        self._clock += 1
        self._rows[row].rested = self._clock
        self.busy -= 1
        self._exchange(row, self.busy)

    def extend(self, first: int, tokens: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Open columns for the next tokens of R rows from `first` on, N in all; returns their ids and positions [N]."""
        rows = self._rows[first : first + len(tokens)]
        places = [range(len(row.held), len(row.held) + len(new)) for row, new in zip(rows, tokens, strict=True)]
        self._width = max(self._width, *(reach.stop for reach in places))
        self._fit()
        for row, new in zip(rows, tokens, strict=True):
            row.held += new
        both = np.array([list(chain(*tokens)), list(chain(*places))])  # faster than a tensor is made of lists
        ids, positions = torch.as_tensor(both, device=self._device)
        self.aim(first, positions, [len(new) for new in tokens], max(reach.stop for reach in places))
        return ids, positions

    def aim(self, first: int, positions: Tensor, counts: Sequence[int], columns: int | None = None) -> None:
        """Keep so many new tokens of each row from `first` on at positions [N]; so many columns are looked at."""
        self._first, self.columns = first, columns or self._width
        self._positions, self._counts = positions, counts

    def row_numbers(self) -> list[int]:
        """Where in the tensors the rows are [R] that are read now."""
        return [row.number for row in self._rows[self._first : self._first + len(self._counts)]]

    def grow(self, tokens: Sequence[int]) -> tuple[list[int], list[int]]:
        """Open a column for the next token of each busy row.

        Returns ids and positions of a power of two of rows, or all of them: a few numbers of rows come again and again.
        What stands in the others lies behind their own, where no token looks before it is overwritten.
        """
        rows = self._rows[: 1 << (len(tokens) - 1).bit_length()]
        positions = [len(row.held) for row in rows]
        self._width = max(self._width, 1 + max(positions))
        self._fit()
        self._line_up(0, len(rows))
        for row, token in zip(rows, tokens, strict=False):
            row.held.append(token)
        return [*tokens, *[0] * (len(rows) - len(tokens))], positions

    def keep(self, new: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Keep a layer's new keys and values [N, 2, heads, size]; returns those looked at, [R, heads, C, size] each."""
        rows = slice(self._first, self._first + len(self._counts))
        if layer == 0:
            self._line_up(rows.start, rows.stop)
            self._into = torch.arange(rows.start, rows.stop, device=new.device)
            if len(new) > len(self._counts):
                counts = torch.tensor(self._counts, device=new.device)
                self._into = self._into.repeat_interleave(counts, output_size=len(new))
        both = self.tensors(layer, new.shape[2], new)
        for held, part in zip(both, new.unbind(1), strict=True):
            held[self._into, :, self._positions] = part.to(held.dtype)
        keys, values = (held[rows, :, : self.columns] for held in both)
        return keys, values

    def tensors(self, layer: int, heads: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values that are held of a layer [rows, heads, columns, size], of the kind and size of these."""
        if layer == len(self._layers):
            self._layers.append(self._new(heads, like))
        return self._layers[layer]

    def _new(self, heads: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Zeros, since the unwritten is read under a mask, and 0 x NaN is NaN."""
        shape = self._height, heads, self._width, like.shape[-1]
        if like.device.type == "cpu":  # column behind column, as loops read keys
            return like.new_zeros((*shape[:2], shape[3], shape[2])).mT, like.new_zeros(shape)
        return like.new_zeros(shape), like.new_zeros(shape)

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: object, **__: object) -> tuple[Tensor, ...]:
        """Called by the attention of each layer of transformers with the new keys and values [R, heads, T, size]."""
        new = torch.stack([keys, values], 1).permute(0, 3, 1, 2, 4)
        chosen = [part[:count] for part, count in zip(new, self._counts, strict=True)]
        return self.keep(torch.cat(chosen), layer)

    def _find(self, prompt: Sequence[int]) -> tuple[_Row | None, int]:
        """The row that holds most of a prompt's beginning, and how many tokens; the last one is not looked for."""
        donor, known = None, 0
        for row in self._rows:
            if row.held[known : known + 1] == prompt[known : known + 1] and row.held[:known] == prompt[:known]:
                donor, known = row, _common(row.held, prompt[:-1], known)
        return donor, known

    def _place_for(self, donor: _Row | None, known: int) -> int:
        """A row that rests: the donor's, if all it holds is known, or what rests longest; or else a new one."""
        resting = range(self.busy, len(self._rows))
        if not resting:
            self._rows.append(_Row(self.busy))
        for place in resting:
            if self._rows[place] is donor and len(self._rows[place].held) == known:
                return place
        return min(resting, key=lambda place: self._rows[place].rested, default=self.busy)

    def _exchange(self, one: int, other: int) -> None:
        self._rows[one], self._rows[other] = self._rows[other], self._rows[one]

    def _line_up(self, start: int, stop: int) -> None:
        """Let these rows be the same ones of the tensors, in their order."""
        for number, row in enumerate(self._rows[start:stop], start):
            if row.number != number:
                other = next(other for other in self._rows if other.number == number)
                width = max(len(row.held), len(other.held))
                for tensor in chain(*self._layers):
                    here, there = tensor[row.number, :, :width], tensor[number, :, :width]
                    kept = here.clone()
                    here.copy_(there)
                    there.copy_(kept)
                row.number, other.number = number, row.number

    def _fit(self) -> None:
        """Make the tensors large enough."""
        self._height = max(self._height, len(self._rows))
        self._width = -(-self._width // _ROOM) * _ROOM
        height, _, width, _ = self._layers[0][0].shape if self._layers else (self._height, 0, self._width, 0)
        if height >= self._height and width >= self._width:
            return
        self.replays.clear()
        if height < self._height:
            self._height = max(self._height, height * 3 // 2)
        for number, layer in enumerate(self._layers):  # one after the other, as a second copy of all may not fit
            self._layers[number] = self._new(layer[0].shape[1], layer[0])
            for old, new in zip(layer, self._layers[number], strict=True):
                new[:height, :, :width] = old


def _common(one: Sequence[int], other: Sequence[int], known: int) -> int:
    """How many tokens both begin with; so many are known. Halves are compared, as Python compares them in C."""
    counts = range(known + 1, 1 + min(len(one), len(other)))
    return known + bisect_left(counts, True, key=lambda count: one[known:count] != other[known:count])
