"""The objective: pure functions of one number a token. All return [N], to be summed and divided by a token count.

PPO: Schulman et al. 2017, arXiv:1707.06347. Dual clip: Ye et al. 2020, arXiv:1912.09729, equation 5.
"""

import torch
from torch import Tensor


def policy_loss(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, clip: float, dual_clip: float | None
) -> tuple[Tensor, Tensor]:
    """The clipped surrogate, negated, and where (bool) clipping stopped the gradient.

    With `dual_clip` c > 1 the loss of a token with negative advantage A is at most c |A|.
    """
    ratio = (logprobs - old_logprobs).clamp(-20, 20).exp()
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip, 1 + clip)
    loss = torch.maximum(plain, clipped)
    stopped = clipped > plain
    if dual_clip is not None:
        ceiling = -advantages * dual_clip
        over = (advantages < 0) & (loss > ceiling)
        loss = torch.where(over, ceiling, loss)
        stopped = stopped | over
    return loss, stopped


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip: float | None) -> Tensor:
    """Half the squared error, or that of the value held within `clip` of the old one, if that is larger."""
    error = (values - returns) ** 2
    if clip is not None:
        held = old_values + (values - old_values).clamp(-clip, clip)
        error = torch.maximum(error, (held - returns) ** 2)
    return 0.5 * error


def kl_k1(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Estimate of the divergence from the reference, in nats; unbiased where tokens are sampled without filters."""
    return logprobs - reference


def kl_k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """The same with less variance, never negative, and with a gradient fit for a loss term (Schulman 2020)."""
    k1 = logprobs - reference
    return torch.expm1(-k1) + k1


def effective_share(log_ratios: Tensor) -> Tensor:
    """The effective sample size of importance weights exp(log_ratios) [n], over n: 1 where all weigh the same."""
    weights = (log_ratios - log_ratios.max()).double().exp()
    return weights.sum() ** 2 / (len(weights) * (weights**2).sum())


def whiten(x: Tensor, where: Tensor | None = None) -> Tensor:
    """Zero mean and unit variance over all tokens, or over those marked; a batch without spread is only centred."""
    exact = x.double()  # in fp32 the mean of equal numbers may be another, and that difference would be blown up
    counted = exact if where is None else exact[where]
    centred = exact - counted.mean()
    if len(counted) > 1 and (spread := counted.var()) > 1e-12:
        centred *= torch.rsqrt(spread + 1e-8)
    return centred.to(x.dtype)


def explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    """1 is a perfect critic, 0 no better than a constant; 0 where the returns do not vary."""
    spread = returns.double().var()
    unexplained = (returns - values).double().var()
    return torch.where(spread > 1e-12, 1 - unexplained / spread.clamp(min=1e-12), 0.0)
