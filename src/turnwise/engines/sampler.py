"""One token a row from logits, and its log-prob."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from turnwise.types import Sampling


def sample(logits: Tensor, sampling: Sequence[Sampling], uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """One token a row [R] by inverting the cumulative distribution at `uniforms` [R] (uniform in [0, 1)).

    Also returns its log-prob [R] at the row's temperature under the whole distribution: what the trainer computes.
    Logits are [R, V]. At temperature 0 the likeliest token is taken, and scored at temperature 1.
    """
    temperatures = [s.temperature or 1.0 for s in sampling]
    if set(temperatures) != {1.0}:
        logits = logits / torch.tensor(temperatures, device=logits.device)[:, None]
    shares = torch.softmax(logits, dim=-1)
    allowed = shares
    if any(s.top_k or s.top_p < 1 for s in sampling):
        allowed = _filtered(shares, sampling)
    cumulative = allowed.cumsum(dim=-1, dtype=torch.float64)
    target = uniforms.double()[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, target, right=True)[:, 0]
    tokens = tokens.clamp_(max=logits.shape[-1] - 1)
    greedy = [row for row, s in enumerate(sampling) if s.temperature == 0]
    if greedy:
        tokens[greedy] = logits[greedy].argmax(dim=-1)
    return tokens, shares.gather(1, tokens[:, None])[:, 0].log()


def _filtered(shares: Tensor, sampling: Sequence[Sampling]) -> Tensor:
    """Probabilities [R, V] with all but each row's top k, and all beyond its nucleus of mass top_p, at zero."""
    ranked, order = shares.sort(dim=-1, descending=True, stable=True)
    before = ranked.cumsum(dim=-1) - ranked
    nucleus = shares.new_tensor([s.top_p if s.top_p < 1 else math.inf for s in sampling])[:, None]
    most = torch.tensor([s.top_k or shares.shape[1] for s in sampling], device=shares.device)[:, None]
    # The first token that reaches the mass is kept.
    out = (before >= nucleus) | (torch.arange(shares.shape[1], device=shares.device) >= most)
    return shares.masked_fill(torch.zeros_like(out).scatter_(1, order, out), 0)
