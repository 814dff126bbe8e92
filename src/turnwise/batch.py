"""Where turns become tensors.

A prompt that extends the row before it joins that row; any other opens a new one. Rows are made in the order in
which their tokens were sampled, so one flat vector over all sampled tokens reads both ways: cut at the ends of
segments it is the streams along which credit flows, cut at the ends of rows it is what the losses sum over.

Shapes: B rows, N sampled tokens, E segments, L all tokens of all rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from turnwise.sending import sent
from turnwise.types import Segment

_WORTH_SHARING = 16  # tokens; a shorter common beginning costs more to keep apart than it saves


@dataclass(frozen=True)
class Line:
    """Rows behind one another as a model reads them: what all of them begin with, once, then the rest of each."""

    tokens: Tensor  # [T]
    positions: Tensor  # [T] of each token in its row
    shared: int  # tokens that all rows begin with
    lengths: Tensor  # [b] of the rests; on the CPU, where the rows' places are worked out

    def to(self, device: torch.device) -> Line:
        return Line(sent(self.tokens, device), sent(self.positions, device), self.shared, self.lengths)


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
class Batch:
    """The turns of some segments, packed into rows."""

    segments: Sequence[Segment]
    tokens: Tensor  # [L]
    sampled: Tensor  # [L] bool: chosen by the policy, not shown to it
    row_lengths: Tensor  # [B]
    final_rows: Tensor  # [E] the row that ends with the segment's next prompt; -1 where the task terminated
    logprobs: Tensor  # [N] by the engine, when it sampled them
    rewards: Tensor  # [N] on the last sampled token of a turn
    turn_firsts: Tensor  # [N] bool: the first sampled token of a turn
    step_ends: Tensor  # [N] bool: the last sampled token before the environment moved on
    segment_ends: Tensor  # [N] bool
    in_action: Tensor  # [N] bool: spells the action, not the reasoning
    newest: Tensor  # [N] bool: sampled by the newest weights, and not by those before an update or more

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

    def micros(self, rows: Tensor, max_tokens: int, finals: bool, lanes: int = 1) -> Iterator[Micro]:
        """The rows in lines of at most `max_tokens` tokens (a longer row goes alone), those of like length together.

        With `finals` the next prompts at the ends of rows are read too; without, a row is read only as far as its
        last sampled token needs. The lines are of as like a size as there can be, and their number is a multiple of
        the lanes'.
        """
        reach = self._reach(finals)
        order = rows[torch.argsort(reach[rows], descending=True, stable=True)]
        for line in _lines(reach[order].tolist(), max_tokens, lanes):
            yield self._micro(order[line], reach, finals)

    def _micro(self, rows: Tensor, reach: Tensor, finals: bool) -> Micro:
        shared = self._shared(rows)
        lengths = reach[rows] - shared
        offsets = torch.cumsum(lengths, 0) - lengths  # of the rests in the line, the beginning not counted
        rests = spans(self.row_starts[rows] + shared, lengths)
        beginning = self.row_starts[rows[0]] + torch.arange(shared)
        read = torch.cat([beginning, rests])
        counts = self.sampled_per_row[rows]
        index = spans((torch.cumsum(self.sampled_per_row, 0) - self.sampled_per_row)[rows], counts)
        chosen = self._chosen[index]
        local = torch.full_like(self.row_lengths, -1).index_put((rows,), torch.arange(len(rows)))
        of_segments = torch.where(self.final_rows >= 0, local[self.final_rows], -1) if finals else self.final_rows[:0]
        segments = (of_segments >= 0).nonzero()[:, 0]
        last = self.row_lengths[self.final_rows[segments]] - 1
        return Micro(
            line=Line(self.tokens[read], self._columns[read], shared, lengths),
            index=index,
            before=torch.repeat_interleave(offsets, counts) + self._columns[chosen] - 1,
            targets=self.tokens[chosen],
            segments=segments,
            ends=offsets[of_segments[segments]] + last,
        )

    def _shared(self, rows: Tensor) -> int:
        """How many tokens all these rows begin with, up to the first place that is asked about."""
        limit = int(self._first_asked[rows].min())
        if len(rows) == 1 or limit < _WORTH_SHARING:
            return 0
        begin = self.tokens[self.row_starts[rows, None] + torch.arange(limit)]
        same = int((begin == begin[:1]).all(0).cumprod(0).sum())
        return same if same >= _WORTH_SHARING else 0

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


@dataclass(frozen=True)
class Streams:
    """What an estimator sees: every segment's sampled tokens in time order, one segment after the other."""

    segments: Sequence[Segment]
    rewards: Tensor  # [N]
    values: Tensor  # [N] of the state before each token; zeros where there is no critic
    bootstraps: Tensor  # [E] value of the next rendered prompt; 0 where the task terminated
    step_ends: Tensor  # [N] bool: after this token the environment moved on
    segment_ends: Tensor  # [N] bool


@dataclass(frozen=True)
class Estimate:
    """What an estimator says of them."""

    advantages: Tensor  # [N]
    returns: Tensor | None = None  # [N] what the values should have been; None: it needs no critic
    targets: Tensor | None = None  # [N] bool: where the critic is to learn its return; None: everywhere


class _Rows:
    """Grows rows token by token."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.sampled: list[bool] = []
        self.lengths: list[int] = []

    def show(self, prompt: Sequence[int], fresh: bool) -> None:
        """Show a prompt: as the rest of the newest row if it extends that row, else as a new row."""
        known = self.lengths[-1] if self.lengths and not fresh else 0
        if known and (len(prompt) < known or list(prompt[:known]) != self.tokens[-known:]):
            known = 0
        if not known:
            self.lengths.append(0)
        self._append(prompt[known:], sampled=False)

    def sample(self, ids: Sequence[int]) -> None:
        self._append(ids, sampled=True)

    def _append(self, ids: Sequence[int], sampled: bool) -> None:
        self.tokens += ids
        self.sampled += [sampled] * len(ids)
        self.lengths[-1] += len(ids)


def pack(segments: Sequence[Segment]) -> Batch:
    """Segments to rows. Every prompt must hold at least one token, every segment at least one turn."""
    rows = _Rows()
    final_rows: list[int] = []
    logprobs: list[float] = []
    rewards: list[float] = []
    versions: list[int] = []
    counts: list[int] = []  # sampled tokens of each turn
    actions: list[int] = []  # of these, how many spell the action
    steps: list[bool] = []
    segment_turns: list[int] = []
    for segment in segments:
        for number, turn in enumerate(segment.turns):
            rows.show(turn.prompt_ids, fresh=number == 0)
            rows.sample(turn.generation.token_ids)
            if len(turn.generation.logprobs) != len(turn.generation.token_ids):
                raise ValueError(
                    f"an engine sampled {len(turn.generation.token_ids)} tokens and gave "
                    f"{len(turn.generation.logprobs)} log-probs; it must give one for each"
                )
            logprobs += turn.generation.logprobs
            versions += turn.generation.token_versions
            counts.append(len(turn.generation.token_ids))
            rewards.append(turn.reward)
            actions.append(turn.action_tokens)
            steps.append(not turn.of_memory)
        segment_turns.append(len(segment.turns))
        if segment.final_prompt_ids:
            rows.show(segment.final_prompt_ids, fresh=False)
        final_rows.append(len(rows.lengths) - 1 if segment.final_prompt_ids else -1)

    lengths = torch.tensor(counts)
    lasts = torch.cumsum(lengths, 0) - 1
    total = int(lengths.sum())
    left = torch.repeat_interleave(lasts, lengths) - torch.arange(total)  # tokens still to come in the turn
    return Batch(
        segments=segments,
        tokens=torch.tensor(rows.tokens),
        sampled=torch.tensor(rows.sampled),
        row_lengths=torch.tensor(rows.lengths),
        final_rows=torch.tensor(final_rows),
        logprobs=torch.tensor(logprobs),
        rewards=torch.zeros(total).index_put((lasts,), torch.tensor(rewards, dtype=torch.float32)),
        turn_firsts=_marks(total, lasts - lengths + 1),
        step_ends=_marks(total, lasts[torch.tensor(steps)]),
        segment_ends=_marks(total, lasts[torch.cumsum(torch.tensor(segment_turns), 0) - 1]),
        in_action=left < torch.repeat_interleave(torch.tensor(actions), lengths),
        newest=torch.tensor(versions) == max(versions),
    )


def _lines(lengths: Sequence[int], most: int, lanes: int) -> list[slice]:
    """Lines of at most so many tokens, in a multiple of the lanes, and of as few tokens as so many lines can be."""
    lines = _fill(lengths, most)
    wanted = -(-len(lines) // lanes) * lanes
    limits = range(max(lengths, default=most), most)  # the lower, the more lines there are
    fewer = bisect_left(limits, True, key=lambda limit: len(_fill(lengths, limit)) <= wanted)
    return _fill(lengths, limits[fewer]) if fewer < len(limits) else lines


def _fill(lengths: Sequence[int], most: int) -> list[slice]:
    """Consecutive rows, as many in a line as it holds."""
    lines, start, taken = [], 0, 0
    for number, length in enumerate(lengths):
        if number > start and taken + length > most:
            lines.append(slice(start, number))
            start, taken = number, 0
        taken += length
    return [*lines, slice(start, len(lengths))] if lengths else lines


def spans(starts: Tensor, lengths: Tensor) -> Tensor:
    """start, start + 1, ... for each span, one after the other."""
    offsets = torch.cumsum(lengths, 0) - lengths
    return torch.repeat_interleave(starts - offsets, lengths) + torch.arange(int(lengths.sum()))


def _marks(total: int, where: Tensor) -> Tensor:
    return torch.zeros(total, dtype=torch.bool).index_fill(0, where, True)
