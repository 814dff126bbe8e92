"""Where turns become tensors.

A prompt that extends the row before it joins that row; any other opens a new one. Rows are made in the order in
which their tokens were sampled, so one flat vector over all sampled tokens reads both ways: cut at the ends of
segments it is the streams along which credit flows, cut at the ends of rows it is what the losses sum over.

Shapes: B rows, N sampled tokens, E segments, L all tokens of all rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from turnwise.types import Segment

_WIDTH = 16  # rows are as wide as a multiple of this: a processor prepares every new shape of a product anew


@dataclass(frozen=True)
class Micro:
    """A few rows side by side, as a model reads them. Padding is on the right, where nothing can see it."""

    tokens: Tensor  # [b, T]
    index: Tensor  # [n] the flat positions (of N) of the sampled tokens read here
    before: tuple[Tensor, Tensor]  # row and column [n] just before each of them: where it is predicted
    targets: Tensor  # [n] their ids
    segments: Tensor  # [e] the segments whose next prompt ends a row here
    ends: tuple[Tensor, Tensor]  # row and column [e] of the last token of that prompt

    @cached_property
    def shared(self) -> int:
        """How many tokens all rows begin with, where nothing is asked before their end: they can be read once."""
        same = (self.tokens == self.tokens[:1]).all(0).cumprod(0).sum()
        return min(int(same), *self.before[1].tolist(), *self.ends[1].tolist()) if len(self.tokens) > 1 else 0


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

    @cached_property
    def row_starts(self) -> Tensor:
        return torch.cumsum(self.row_lengths, 0) - self.row_lengths

    @cached_property
    def sampled_per_row(self) -> Tensor:
        """[B]"""
        rows = torch.repeat_interleave(torch.arange(len(self.row_lengths)), self.row_lengths)
        return torch.bincount(rows[self.sampled], minlength=len(self.row_lengths))

    @property
    def trained_rows(self) -> Tensor:
        """The rows with sampled tokens; the others only hold a next prompt."""
        return self.sampled_per_row.nonzero()[:, 0]

    def micros(self, rows: Tensor, max_tokens: int, finals: bool) -> Iterator[Micro]:
        """The rows in pieces of at most `max_tokens` tokens, padding included (a longer row goes alone).

        Rows of like length go together. With `finals` the next prompts at the ends of rows are read too; without,
        a row is read only as far as its last sampled token needs.
        """
        reach = self._reach(finals)
        order = rows[torch.argsort(reach[rows], descending=True, stable=True)].tolist()
        start = 0
        while start < len(order):
            width = -(-int(reach[order[start]]) // _WIDTH) * _WIDTH
            stop = min(start + max(1, max_tokens // width), len(order))
            yield self._micro(order[start:stop], width, reach, finals)
            start = stop

    def _reach(self, finals: bool) -> Tensor:
        """[B] how many tokens of each row must be read."""
        columns = torch.arange(len(self.tokens)) - torch.repeat_interleave(self.row_starts, self.row_lengths)
        rows = torch.repeat_interleave(torch.arange(len(self.row_lengths)), self.row_lengths)
        reach = torch.zeros_like(self.row_lengths).scatter_reduce_(
            0, rows[self.sampled], columns[self.sampled], reduce="amax"
        )
        if finals:
            ended = self.final_rows[self.final_rows >= 0]
            reach[ended] = self.row_lengths[ended]
        return reach

    def _micro(self, rows: list[int], width: int, reach: Tensor, finals: bool) -> Micro:
        offsets = torch.cumsum(self.sampled_per_row, 0) - self.sampled_per_row
        tokens = torch.zeros((len(rows), width), dtype=torch.long)
        index, line, column, targets = [], [], [], []
        for number, row in enumerate(rows):
            start, length = int(self.row_starts[row]), int(self.row_lengths[row])
            ids, chosen = self.tokens[start : start + length], self.sampled[start : start + length]
            tokens[number, : reach[row]] = ids[: reach[row]]
            columns = chosen.nonzero()[:, 0]
            index.append(int(offsets[row]) + torch.arange(len(columns)))
            line.append(torch.full_like(columns, number))
            column.append(columns - 1)
            targets.append(ids[columns])
        place = {row: number for number, row in enumerate(rows)}
        segments = [e for e, row in enumerate(self.final_rows.tolist()) if row in place] if finals else []
        ends = [(place[int(self.final_rows[e])], int(self.row_lengths[self.final_rows[e]]) - 1) for e in segments]
        end_rows, end_columns = torch.tensor(ends, dtype=torch.long).reshape(-1, 2).unbind(1)
        return Micro(
            tokens,
            torch.cat(index),
            (torch.cat(line), torch.cat(column)),
            torch.cat(targets),
            torch.tensor(segments, dtype=torch.long),
            (end_rows, end_columns),
        )


@dataclass(frozen=True)
class Streams:
    """What an estimator sees: every segment's sampled tokens in time order, one segment after the other."""

    segments: Sequence[Segment]
    rewards: Tensor  # [N]
    values: Tensor  # [N] of the state before each token
    bootstraps: Tensor  # [E] value of the next rendered prompt; 0 where the task terminated
    step_ends: Tensor  # [N] bool: after this token the environment moved on
    segment_ends: Tensor  # [N] bool


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
    counts: list[int] = []  # sampled tokens of each turn
    actions: list[int] = []  # of these, how many spell the action
    steps: list[bool] = []
    segment_turns: list[int] = []
    for segment in segments:
        for number, turn in enumerate(segment.turns):
            rows.show(turn.prompt_ids, fresh=number == 0)
            rows.sample(turn.generation.token_ids)
            logprobs += turn.generation.logprobs
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
    )


def _marks(total: int, where: Tensor) -> Tensor:
    return torch.zeros(total, dtype=torch.bool).index_fill(0, where, True)
