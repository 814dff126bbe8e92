"""Formulas of which a GPU makes one kernel each, by torch.compile; a processor takes them as they stand.

On a GPU products are fast, and what lies between them waits for memory: each number should be read and written once.

Shapes: N tokens, D hidden units, d units of a head, I units of a perceptron, V tokens that there are.
"""

import warnings
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

F = TypeVar("F", bound=Callable[..., Any])


def in_one(formula: F) -> F:
    """The formula, of whose tensors the first lies where it is computed. It may not change what it is given."""

    @wraps(formula)
    def compute(first: Tensor, *rest: Any) -> Any:
        if not first.is_cuda:
            return formula(first, *rest)
        # Whether anything learns, or is a parameter, makes no difference, and another number of tokens is no reason to
        # compile anew.
        given = [
            x.detach() if isinstance(x, nn.Parameter) or getattr(x, "requires_grad", False) else x
            for x in (first, *rest)
        ]
        for x in given:
            if isinstance(x, Tensor) and x.dim() and len(x) == len(first):
                torch._dynamo.maybe_mark_dynamic(x, 0)
        return _compiled(formula)(*given)

    return compute  # pyright: ignore[reportReturnType]


@cache
def _compiled(formula: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(formula) if _can_compile() else formula


@cache
def _can_compile() -> bool:
    try:
        torch.compile(lambda x: x + 1)(torch.zeros(2, device="cuda"))
    except Exception as error:  # of Triton, of the C compiler that it asks, or of its search for one
        reason = next(iter(str(error).splitlines()), "")
        warnings.warn(
            f"kernels for this GPU cannot be compiled, so training takes longer: {reason} (needed are Triton, a C "
            "compiler and Python's headers, as in the packages gcc and python3-dev)",
            stacklevel=2,
        )
        return False
    return True


@in_one
def normed(
    given: Tensor, added: Tensor | None, weight: Tensor, floor: float, kind: torch.dtype
) -> tuple[Tensor | None, Tensor, Tensor]:
    """The sum [..., D], if anything is added; its RMS norm over the last axis, in `kind`; the norm's scale [..., 1]."""
    total = given if added is None else given + added
    scale = (total.square().mean(-1, keepdim=True) + floor).rsqrt()
    return None if added is None else total, (total * scale * weight).to(kind), scale


@in_one
def unit(given: Tensor, floor: Tensor, kind: torch.dtype) -> Tensor:
    """Vectors [..., D] over the root of their squares' sum and of the floor's square, in `kind`."""
    return (given * (given.square().sum(-1, keepdim=True) + floor.square()).rsqrt()).to(kind)


@in_one
def norm_slope(
    slope: Tensor, total: Tensor, weight: Tensor, scale: Tensor, beside: Tensor | None, kind: torch.dtype | None
) -> tuple[Tensor, Tensor | None]:
    """Of the sum [..., D], in fp32, by that of its norm and by another of itself, if there is one; in `kind` too."""
    own = slope.float() * weight
    along = (own * total).mean(-1, keepdim=True)  # how much the slope points along what is normed
    found = own * scale - total * (along * scale**3)
    found = found if beside is None else found + beside
    return found, None if kind is None else found.to(kind)


@in_one
def norm_weight_slope(slope: Tensor, given: Tensor, scale: Tensor, rows: int) -> Tensor:
    """Of the weight [D], in fp32; the number of vectors is a multiple of `rows`, whose sums are taken side by side."""
    return (slope.float() * given * scale).reshape(-1, rows, given.shape[-1]).sum(1).sum(0)


@in_one
def turned(given: Tensor, cosine: Tensor, sine: Tensor, kind: torch.dtype, still: int = 0) -> Tensor:
    """Vectors [N, heads, d] rotated by angles [N, 1, d / 2], the first half of each with the second, in `kind`.

    The last heads, so many, stay as they are.
    """
    exact = given.float()
    rotated, rest = exact.split((given.shape[1] - still, still), 1)
    one, other = rotated.chunk(2, -1)
    rotated = torch.cat([one * cosine - other * sine, one * sine + other * cosine], -1)
    return torch.cat([rotated, rest], 1).to(kind)


@in_one
def opened(given: Tensor) -> Tensor:
    """SwiGLU: [N, I] of gates and ups [N, 2 I]."""
    gate, up = given.float().chunk(2, -1)
    return (nn.functional.silu(gate) * up).to(given.dtype)


@in_one
def opened_again(given: Tensor, slope: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """What SwiGLU makes of gates and ups [N, 2 I], and by its slope [N, I], if there is one, that of these."""
    gate, up = given.float().chunk(2, -1)
    share = gate.sigmoid()
    found = (gate * share * up).to(given.dtype)
    if slope is None:
        return found, None
    of_gate = slope * up * share * (1 + gate * (1 - share))
    return found, torch.cat([of_gate, slope * gate * share], -1).to(given.dtype)


@in_one
def judged(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs of the targets and entropies [N], of logits [N, V] in any precision; and the logs of their sums."""
    scaled = logits.float() / temperature
    total = scaled.logsumexp(-1, keepdim=True)
    logprobs = scaled - total
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(1, targets[:, None])[:, 0], entropy, total


@in_one
def judged_slope(
    logits: Tensor,
    targets: Tensor,
    temperature: float,
    total: Tensor,
    entropy: Tensor,
    of_logprobs: Tensor,
    of_entropy: Tensor,
) -> Tensor:
    """Of the logits [N, V], by those of log-probs and entropies [N] and by what `judged` said."""
    logprobs = logits.float() / temperature - total
    shares = logprobs.exp()
    chosen = torch.arange(logits.shape[1], device=logits.device) == targets[:, None]
    slope = of_logprobs[:, None] * (chosen.float() - shares)
    slope = slope - of_entropy[:, None] * shares * (logprobs + entropy[:, None])
    return (slope / temperature).to(logits.dtype)
