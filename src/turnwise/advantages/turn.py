"""Generalized advantage estimation over turns: every token of a turn has the same credit (VAGEN, arXiv:2510.16907).

With V_k the value at the anchor of turn k, R_k the sum of its rewards, and V_K+1 the value of the next rendered prompt
(0 where the task terminated):

    A_k = R_k + turn_gamma V_k+1 - V_k + turn_gamma turn_lambda A_k+1

At the first token V is the value of the state in which the turn began; at the last it knows the reply already. The
critic learns at the anchors alone.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from turnwise.advantages import spans
from turnwise.advantages.gae import fraction, gae
from turnwise.batch import Estimate, Streams


@dataclass(frozen=True)
class TurnGAE:
    """A turn without reward is a turn all the same; a question of the memory belongs to the turn it prepares, and so
    it does where a batch ends between the two.
    """

    critic = True
    groups = False
    whiten = True

    turn_gamma: float = 0.95
    turn_lambda: float = 1.0
    anchor: Literal["first", "last"] = "first"

    def __post_init__(self) -> None:
        for key in ("turn_gamma", "turn_lambda"):
            fraction(key, getattr(self, key))
        if self.anchor not in ("first", "last"):
            raise ValueError(f"advantage.anchor is {self.anchor!r}; it is the first or the last token of a turn")

    def __call__(self, streams: Streams) -> Estimate:
        """Returns are those of the turn, at all its tokens; only the anchor is a target."""
        ends = streams.step_ends | streams.segment_ends
        anchors = ends if self.anchor == "last" else torch.cat([ends.new_ones(1), ends[:-1]])
        rewards = spans.sums(streams.rewards.double(), ends)
        # Where the environment has not moved on, the next batch has the rest of the turn.
        turns = streams.values[anchors], streams.bootstraps, streams.segment_ends[ends], streams.step_ends[ends]
        advantages, returns = gae(rewards, *turns, (self.turn_gamma, self.turn_lambda), (1.0, 1.0))
        return Estimate(spans.spread(advantages, ends), spans.spread(returns, ends), anchors)
