"""Where turns become tensors.

A prompt that extends the row before it joins that row; any other opens a new one. Rows are made in the order in
which their tokens were sampled, so one flat vector over all sampled tokens reads both ways: cut at the ends of
segments it is the streams along which credit flows, cut at the ends of rows it is what the losses sum over.

Shapes: B rows, N sampled tokens, E segments, L all tokens of all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from turnwise.lines import Rows
from turnwise.types import Generation, Segment


@dataclass(frozen=True)
class Batch(Rows):
    """The turns of some segments, packed into rows."""

    segments: Sequence[Segment]
    logprobs: Tensor  # [N] by the engine, when it sampled them
    rewards: Tensor  # [N] on the last sampled token of a turn; in fp64, so that equal returns add up to equal sums
    turn_firsts: Tensor  # [N] bool: the first sampled token of a turn
    step_ends: Tensor  # [N] bool: the last sampled token before the environment moved on
    segment_ends: Tensor  # [N] bool
    in_action: Tensor  # [N] bool: spells the action, not the reasoning
    newest: Tensor  # [N] bool: sampled by the newest weights, and not by those before an update or more


@dataclass(frozen=True)
class Streams:
    """What an estimator sees: every segment's sampled tokens in time order, one segment after the other."""

    segments: Sequence[Segment]
    rewards: Tensor  # [N] in fp64
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


class _Growing:
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
    rows, final_rows = _lay_out(segments)
    turns = [turn for segment in segments for turn in segment.turns]
    replies = [turn.generation for turn in turns]
    for reply in replies:
        _refuse_uneven(reply)
    counts = torch.tensor([len(reply.token_ids) for reply in replies])
    total = int(counts.sum())
    lasts = torch.cumsum(counts, 0) - 1  # the last sampled token of each turn
    left = torch.repeat_interleave(lasts, counts) - torch.arange(total)  # tokens still to come in the turn
    rewards = torch.tensor([turn.reward for turn in turns], dtype=torch.float64)
    in_action = torch.tensor([turn.action_tokens for turn in turns])
    acted = torch.tensor([not turn.of_memory for turn in turns])
    closing = torch.cumsum(torch.tensor([len(segment.turns) for segment in segments]), 0) - 1
    versions = torch.tensor([version for reply in replies for version in reply.token_versions])
    return Batch(
        segments=segments,
        tokens=torch.tensor(rows.tokens),
        sampled=torch.tensor(rows.sampled),
        row_lengths=torch.tensor(rows.lengths),
        final_rows=torch.tensor(final_rows),
        logprobs=torch.tensor([logprob for reply in replies for logprob in reply.logprobs]),
        rewards=torch.zeros(total, dtype=torch.float64).index_put((lasts,), rewards),
        turn_firsts=_marks(total, lasts - counts + 1),
        step_ends=_marks(total, lasts[acted]),
        segment_ends=_marks(total, lasts[closing]),
        in_action=left < torch.repeat_interleave(in_action, counts),
        newest=versions == versions.max(),
    )


def _lay_out(segments: Sequence[Segment]) -> tuple[_Growing, list[int]]:
    """The rows, and which of them ends with each segment's next prompt; -1 where there is none."""
    rows, final_rows = _Growing(), []
    for segment in segments:
        for number, turn in enumerate(segment.turns):
            rows.show(turn.prompt_ids, fresh=number == 0)
            rows.sample(turn.generation.token_ids)
        if segment.final_prompt_ids:
            rows.show(segment.final_prompt_ids, fresh=False)
        final_rows.append(len(rows.lengths) - 1 if segment.final_prompt_ids else -1)
    return rows, final_rows


def _refuse_uneven(reply: Generation) -> None:
    if len(reply.logprobs) != len(reply.token_ids):
        raise ValueError(
            f"an engine sampled {len(reply.token_ids)} tokens and gave {len(reply.logprobs)} log-probs; it must give "
            "one for each"
        )


def _marks(total: int, where: Tensor) -> Tensor:
    return torch.zeros(total, dtype=torch.bool).index_fill(0, where, True)
