"""Formulas of which a GPU makes one kernel each, by torch.compile; a processor takes them as they stand.

On a GPU matrix products are fast, and what lies between them waits for memory: each number should be read and written
once.

Shapes: N tokens, D hidden units, d units of a head, I units of an MLP, V tokens that there are.
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
def rms_norm(
    given: Tensor, added: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor | None, Tensor, Tensor]:
    """The sum [..., D], if anything is added; its RMS norm over the last axis in `dtype`; the norm's scale [..., 1]."""
    total = given if added is None else given + added
    scale = (total.square().mean(-1, keepdim=True) + eps).rsqrt()
    return None if added is None else total, (total * scale * weight).to(dtype), scale


@in_one
def normalised(given: Tensor, eps: Tensor, dtype: torch.dtype) -> Tensor:
    """Vectors [..., D] over the root of their squares' sum and of the square of `eps`, in `dtype`."""
    return (given * (given.square().sum(-1, keepdim=True) + eps.square()).rsqrt()).to(dtype)


@in_one
def rms_norm_backward(
    grad: Tensor, total: Tensor, weight: Tensor, scale: Tensor, total_grad: Tensor | None, dtype: torch.dtype | None
) -> tuple[Tensor, Tensor | None]:
    """The gradient of the sum [..., D] in fp32, and the same in `dtype`.

    Given are the gradient of the norm and, if the sum is used elsewhere, what comes from there.
    """
    own = grad.float() * weight
    projection = (own * total).mean(-1, keepdim=True)
    found = own * scale - total * (projection * scale**3)
    found = found if total_grad is None else found + total_grad
    return found, None if dtype is None else found.to(dtype)


@in_one
def rms_norm_weight_grad(grad: Tensor, given: Tensor, scale: Tensor, rows: int) -> Tensor:
    """The gradient of the weight [D], in fp32.

    The number of vectors is a multiple of `rows`, whose sums are taken side by side.
    """
    return (grad.float() * given * scale).reshape(-1, rows, given.shape[-1]).sum(1).sum(0)


@in_one
def rotary(given: Tensor, cosine: Tensor, sine: Tensor, dtype: torch.dtype, still: int = 0) -> Tensor:
    """Vectors [N, heads, d] rotated by angles [N, 1, d / 2], the first half of each with the second, in `dtype`.

    The last heads, so many, stay as they are.
    """
    exact = given.float()
    rotated, rest = exact.split((given.shape[1] - still, still), 1)
    one, other = rotated.chunk(2, -1)
    rotated = torch.cat([one * cosine - other * sine, one * sine + other * cosine], -1)
    return torch.cat([rotated, rest], 1).to(dtype)


@in_one
def swiglu(given: Tensor) -> Tensor:
    """SwiGLU: [N, I] of gates and ups [N, 2 I]."""
    gate, up = given.float().chunk(2, -1)
    return (nn.functional.silu(gate) * up).to(given.dtype)


@in_one
def swiglu_and_grad(given: Tensor, grad: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """What SwiGLU makes of gates and ups [N, 2 I], and given its gradient [N, I], that of these."""
    gate, up = given.float().chunk(2, -1)
    share = gate.sigmoid()
    found = (gate * share * up).to(given.dtype)
    if grad is None:
        return found, None
    gate_grad = grad * up * share * (1 + gate * (1 - share))
    return found, torch.cat([gate_grad, grad * gate * share], -1).to(given.dtype)


@in_one
def logprobs_and_entropy(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs of the targets and entropies [N], of logits [N, V] in any precision; and the logs of their sums."""
    scaled = logits.float() / temperature
    total = scaled.logsumexp(-1, keepdim=True)
    logprobs = scaled - total
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(1, targets[:, None])[:, 0], entropy, total


@in_one
def logprobs_and_entropy_backward(
    logits: Tensor,
    targets: Tensor,
    temperature: float,
    total: Tensor,
    entropy: Tensor,
    logprobs_grad: Tensor,
    entropy_grad: Tensor,
) -> Tensor:
    """The gradient of the logits [N, V], given those of log-probs and entropies [N]."""
    logprobs = logits.float() / temperature - total
    shares = logprobs.exp()
    chosen = torch.arange(logits.shape[1], device=logits.device) == targets[:, None]
    grad = logprobs_grad[:, None] * (chosen.float() - shares)
    grad = grad - entropy_grad[:, None] * shares * (logprobs + entropy[:, None])
    return (grad / temperature).to(logits.dtype)
