"""The rows of a batch as a model reads them: behind one another in lines, and what they begin with alike only once.

Three rows, in the order of what they are made of, and the line that holds them:

    a b c x
    a b d              a b c x d y      tokens
    a b d y            0 1 2 3 2 3      positions

    each adds          4, 1, 1          own
    and is             4, 3, 4          lengths
    its tokens are at  0 1 2 3, 0 1 4, 0 1 4 5          paths

Shapes: B rows, N sampled tokens, E segments, L all tokens of all rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from turnwise.sending import sent


@dataclass(frozen=True)
class Line:
    """Rows behind one another as a model reads them: what a row begins with like the one before it is read there."""

    tokens: Tensor  # [T] that the rows add to those before them
    positions: Tensor  # [T] of each token in its row
    own: Tensor  # [b] how many tokens each row adds; on the CPU as what follows, where places are worked out
    lengths: Tensor  # [b] of the whole rows
    paths: Tensor  # [sum of lengths] where in the line the tokens of each row are, row after row

    def to(self, device: torch.device) -> Line:
        return replace(self, tokens=sent(self.tokens, device), positions=sent(self.positions, device))


@dataclass(frozen=True)
class Micro:
    """A few rows of a batch in one line, and what is asked about them."""

    line: Line
    index: Tensor  # [n] the flat positions (of N) of the sampled tokens read here
    before: Tensor  # [n] the places in the line just before them: where they are predicted
    targets: Tensor  # [n] their ids
    segments: Tensor  # [e] the segments whose next prompt ends a row here
    ends: Tensor  # [e] the places of the last tokens of those prompts


@dataclass(frozen=True)
class Rows:
    """Rows of tokens, some of which the policy chose, and the next prompts at the ends of some of them."""

    tokens: Tensor  # [L]
    sampled: Tensor  # [L] bool: chosen by the policy, not shown to it
    row_lengths: Tensor  # [B]
    final_rows: Tensor  # [E] the row that ends with the segment's next prompt; -1 where the task terminated

    @cached_property
    def row_starts(self) -> Tensor:
        return torch.cumsum(self.row_lengths, 0) - self.row_lengths

    @cached_property
    def sampled_per_row(self) -> Tensor:
        """[B]"""
        return torch.bincount(self._rows[self.sampled], minlength=len(self.row_lengths))

    @property
    def trained_rows(self) -> Tensor:
        """The rows with sampled tokens; the others only hold a next prompt."""
        return self.sampled_per_row.nonzero()[:, 0]

    def holds(self, marked: Tensor) -> Tensor:
        """[B] bool: the rows that hold some of the marked sampled tokens; `marked` is [N]."""
        return torch.bincount(self._rows[self._chosen[marked]], minlength=len(self.row_lengths)) > 0

    def micros(self, rows: Tensor, max_tokens: int, finals: bool, lanes: int = 1) -> Iterator[Micro]:
        """The rows in lines of at most `max_tokens` tokens (a longer row goes alone).

        Rows that begin alike follow one another, and what they have in common, up to the first place that is asked
        about, is read once. With `finals` the next prompts at the ends of rows are read too; without, a row is read
        only as far as its last sampled token needs. The lines are of as like a size as there can be, and their number
        is a multiple of the lanes'.
        """
        reach = self._reach(finals)
        rows = self._sorted(rows, reach)
        known = self._known(rows, reach)
        for line in _lines(reach[rows].tolist(), known.tolist(), max_tokens, lanes):
            known[line.start] = 0  # what the row before has in common with it is in another line
            yield self._micro(rows[line], known[line], reach, finals)

    def _micro(self, rows: Tensor, known: Tensor, reach: Tensor, finals: bool) -> Micro:
        own = reach[rows] - known
        starts = torch.cumsum(own, 0) - own - known  # of each row, as if all its tokens stood where its own do
        read = spans(self.row_starts[rows] + known, own)
        counts = self.sampled_per_row[rows]
        index = spans((torch.cumsum(self.sampled_per_row, 0) - self.sampled_per_row)[rows], counts)
        chosen = self._chosen[index]
        local = torch.full_like(self.row_lengths, -1).index_put((rows,), torch.arange(len(rows)))
        of_segments = torch.where(self.final_rows >= 0, local[self.final_rows], -1) if finals else self.final_rows[:0]
        segments = (of_segments >= 0).nonzero()[:, 0]
        last = self.row_lengths[self.final_rows[segments]] - 1
        return Micro(
            line=Line(self.tokens[read], self._columns[read], own, reach[rows], paths(own, known)),
            index=index,
            before=torch.repeat_interleave(starts, counts) + self._columns[chosen] - 1,
            targets=self.tokens[chosen],
            segments=segments,
            ends=starts[of_segments[segments]] + last,
        )

    def _known(self, rows: Tensor, reach: Tensor) -> Tensor:
        """[n] with how many tokens each row begins like the one before it, where it is not yet asked about."""
        before = rows.roll(1)
        limits = torch.minimum(self._first_asked[rows], reach[before])
        numbers = torch.repeat_interleave(torch.arange(len(rows)), limits)
        here, there = (self.tokens[spans(self.row_starts[which], limits)] for which in (rows, before))
        differ = (here != there).nonzero()[:, 0]
        columns = differ - (torch.cumsum(limits, 0) - limits)[numbers[differ]]
        return limits.scatter_reduce(0, numbers[differ], columns, reduce="amin")

    def _sorted(self, rows: Tensor, reach: Tensor) -> Tensor:
        """The rows in the order of what is read of them, so that none begins more like another than its neighbours."""
        letters = self._letters  # which Python compares faster than lists of numbers
        starts, lengths = (4 * self.row_starts[rows]).tolist(), (4 * reach[rows]).tolist()
        read = [letters[start : start + length] for start, length in zip(starts, lengths, strict=True)]
        return rows[torch.tensor(sorted(range(len(rows)), key=read.__getitem__))]

    @cached_property
    def _letters(self) -> bytes:
        """[4 L] all tokens, each as four bytes, which compare as the tokens do."""
        return self.tokens.numpy().astype(">u4").tobytes()

    @cached_property
    def _chosen(self) -> Tensor:
        """[N] where the sampled tokens stand among all."""
        return self.sampled.nonzero()[:, 0]

    @cached_property
    def _columns(self) -> Tensor:
        """[L] where in its row each token stands."""
        return torch.arange(len(self.tokens)) - torch.repeat_interleave(self.row_starts, self.row_lengths)

    @cached_property
    def _rows(self) -> Tensor:
        """[L] the row of each token."""
        return torch.repeat_interleave(torch.arange(len(self.row_lengths)), self.row_lengths)

    @cached_property
    def _first_asked(self) -> Tensor:
        """[B] the column before the first sampled token, or the last column where none is sampled."""
        return (self.row_lengths - 1).scatter_reduce(
            0, self._rows[self._chosen], self._columns[self._chosen] - 1, reduce="amin"
        )

    def _reach(self, finals: bool) -> Tensor:
        """[B] how many tokens of each row must be read."""
        reach = torch.zeros_like(self.row_lengths).scatter_reduce_(
            0, self._rows[self._chosen], self._columns[self._chosen], reduce="amax"
        )
        if finals:
            ended = self.final_rows[self.final_rows >= 0]
            reach[ended] = self.row_lengths[ended]
        return reach


def _lines(lengths: Sequence[int], known: Sequence[int], most: int, lanes: int) -> list[slice]:
    """Lines of at most so many tokens, in a multiple of the lanes, and of as few tokens as so many lines can be."""
    lines = _fill(lengths, known, most)
    wanted = -(-len(lines) // lanes) * lanes
    limits = range(max(lengths, default=most), most)  # the lower, the more lines there are
    fewer = bisect_left(limits, True, key=lambda limit: len(_fill(lengths, known, limit)) <= wanted)
    return _fill(lengths, known, limits[fewer]) if fewer < len(limits) else lines


def _fill(lengths: Sequence[int], known: Sequence[int], most: int) -> list[slice]:
    """Consecutive rows, as many in a line as it holds; of each but the first of a line so many tokens are known."""
    lines, start, taken = [], 0, 0
    for number, (length, same) in enumerate(zip(lengths, known, strict=True)):
        if number > start and taken + length - same > most:
            lines.append(slice(start, number))
            start, taken = number, 0
        taken += length if number == start else length - same
    return [*lines, slice(start, len(lengths))] if lengths else lines


def paths(own: Tensor, known: Tensor) -> Tensor:
    """Where the tokens of each row are: the first `known` [b] where those of the row before it, then its `own` [b]."""
    found, path, stop = [], np.empty(0, np.int64), 0
    for more, same in zip(own.tolist(), known.tolist(), strict=True):
        path = np.concatenate([path[:same], np.arange(stop, stop + more)])
        stop += more
        found.append(path)
    return torch.from_numpy(np.concatenate(found))


def spans(starts: Tensor, lengths: Tensor) -> Tensor:
    """start, start + 1, ... for each span, one after the other."""
    offsets = torch.cumsum(lengths, 0) - lengths
    return torch.repeat_interleave(starts - offsets, lengths) + torch.arange(int(lengths.sum()))
