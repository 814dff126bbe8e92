"""The keys and values that a model has left behind, kept while its weights stay the same."""

from collections.abc import Sequence

import torch
from torch import Tensor

from turnwise.engines.replay import Replay

_ROOM = 64  # columns are added in such steps


class Cache:
    """A row a request: per layer keys and values, [2, rows, heads, columns, size]. Stands in for a transformers cache.

    The first `busy` rows are in use. The others rest: they keep what they hold for prompts that begin with it.
    """

    def __init__(self, device: torch.device) -> None:
        self.busy = 0
        self.replays: dict[int, Replay] = {}  # of passes over so many rows of the tensors as they are now
        self._device = device
        self._held: list[list[int]] = []  # the ids whose keys and values a row holds
        self._rested: list[int] = []  # since when a row rests
        self._clock = 0
        self._layers: list[Tensor] = []
        self._rows = self._columns = 0  # that the tensors must have
        self._positions = torch.empty(0)  # [R, T] of what is new
        self._places = torch.empty(0)  # [N x 2 x heads] of its keys and values among all vectors of a layer
        self._seen: tuple[slice, slice] = (slice(0), slice(0))  # rows and columns that are read now

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
        if row != donor and known:
            for tensor in self._layers:
                tensor[:, row, :, :known] = tensor[:, donor, :, :known]
        self._held[row] = list(prompt[:known])
        self._swap(row, self.busy)
        self.busy += 1
        return prompt[known:]

    def find(self, prompt: Sequence[int]) -> tuple[int, int]:
        """The row that holds most of a prompt's beginning, and how many tokens; the last one is not looked for."""
        donor, known = 0, 0
        for row, held in enumerate(self._held):
            if held[: known + 1] == prompt[: known + 1]:  # else it holds no more
                donor, known = row, max(known, _common(held, prompt[:-1]))
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

    def extend(self, first: int, tokens: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, Tensor]:
        """Open columns for the next tokens of R rows from `first` on.

        Returns their ids [R, T], padded on the right, their positions [R, T] and the attention mask [R, 1, T, C].
        """
        stop, width = first + len(tokens), max(map(len, tokens))
        ids = torch.tensor([[*new, *[0] * (width - len(new))] for new in tokens], device=self._device)
        starts = torch.tensor([len(held) for held in self._held[first:stop]], device=self._device)
        positions = starts[:, None] + torch.arange(width, device=self._device)
        columns = max(len(held) for held in self._held[first:stop]) + width
        self._columns = max(self._columns, columns)
        self._fit()
        for held, new in zip(self._held[first:stop], tokens, strict=True):
            held += new
        # Padding leaves its keys behind a row's own, where no token looks before they are overwritten.
        return ids, positions, self.aim(first, positions, columns)

    def aim(self, first: int, positions: Tensor, columns: int | None = None) -> Tensor:
        """Let new tokens be kept at positions [R, T] of the rows from `first` on; returns the mask of attention.

        It is [R, 1, T, C] for so many columns, or all.
        """
        columns, stop = columns or self._columns, first + len(positions)
        self._positions, self._seen = positions, (slice(first, stop), slice(columns))
        return (torch.arange(columns, device=self._device) <= positions[:, :, None])[:, None]

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

    def keep(self, new: Tensor, layer: int, chosen: Tensor | None = None) -> Tensor:
        """Keep a layer's new keys and values [N, 2, heads, size]; returns what is looked at [2, R, heads, C, size].

        They are of all the R x T tokens that `extend` opened columns for, or of the chosen ones [N] among them.
        """
        if layer == len(self._layers):
            self._layers.append(new.new_zeros((2, self._rows, new.shape[2], self._columns, new.shape[3])))
        held, (span, width) = self._layers[layer], self._seen
        if layer == 0 or held.shape != self._layers[layer - 1].shape:
            places = self._places_in(held)
            self._places = (places if chosen is None else places[chosen]).flatten()
        held.view(-1, held.shape[-1]).index_copy_(0, self._places, new.reshape(-1, held.shape[-1]).to(held.dtype))
        return held[:, span, :, width]

    def _places_in(self, layer: Tensor) -> Tensor:
        """[R x T, 2, heads] where among the vectors of a layer what is new is kept."""
        starts = torch.arange(0, layer[..., 0].numel(), layer.shape[3], device=layer.device).view(layer.shape[:3])
        return (starts[:, self._seen[0]].transpose(0, 1)[:, None] + self._positions[:, :, None, None]).flatten(0, 1)

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: object, **__: object) -> tuple[Tensor, ...]:
        """Called by the attention of each layer of transformers with the new keys and values [R, heads, T, size]."""
        return self.keep(torch.stack([keys, values], 1).permute(0, 3, 1, 2, 4).flatten(0, 1), layer).unbind()

    def _fit(self) -> None:
        """Make the tensors large enough, with zeros: the unwritten is read under a mask, and 0 x NaN is NaN."""
        rows, columns = self._rows, -(-self._columns // _ROOM) * _ROOM
        self._columns = columns
        for layer, old in enumerate(self._layers):
            if old.shape[1] < rows or old.shape[3] < columns:
                self.replays.clear()
                height = old.shape[1] if old.shape[1] >= rows else max(rows, old.shape[1] * 3 // 2)
                self._layers[layer] = old.new_zeros((2, height, old.shape[2], columns, old.shape[4]))
                self._layers[layer][:, : old.shape[1], :, : old.shape[3]] = old

    def _swap(self, one: int, other: int) -> None:
        if one != other:
            width = max(len(self._held[one]), len(self._held[other]))
            for tensor in self._layers:
                here, there = tensor[:, one, :, :width], tensor[:, other, :, :width]
                kept = here.clone()
                here.copy_(there)
                there.copy_(kept)
            self._held[one], self._held[other] = self._held[other], self._held[one]
            self._rested[one], self._rested[other] = self._rested[other], self._rested[one]


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return min(len(one), len(other))
