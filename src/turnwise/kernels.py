# pyright: reportIncompatibleMethodOverride=false, reportPrivateImportUsage=false
"""What the layers of a decoder compute, forwards and backwards, in as few operations as there can be.

A small model's products take a millisecond or two on a processor; what lies around them must not take longer. Each
function here has the backward pass that one would write by hand: nothing is cast, copied or kept twice. What lies
between products is compiled, of formulas for a GPU (gpu.py) and of loops for a processor (cpu.py).

Shapes: N tokens, D hidden units, d units of a head, H query heads, G groups of keys and values, R ranks of adapters.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from turnwise import cpu, gpu

# A processor prepares every new shape of a product anew, so only few are let occur: multiples of so many
_COUNT = 64  # tokens or places
WIDTH = 16  # tokens of rows that lie side by side
LONG = 512  # tokens that a query looks at, beyond which its weights are not kept


def padded(count: int, multiple: int = _COUNT) -> int:
    """How many tokens or places are computed for so many."""
    return -(-count // multiple) * multiple


@dataclass(frozen=True)
class Packed:
    """Weights of linear layers that read the same input, as one product reads them."""

    weight: Tensor  # [out, in] in the type of products, adapters added
    bias: Tensor | None  # [out]
    parameters: Sequence[nn.Parameter]  # all weights, then all biases
    order: Tensor | None = None  # [out] which of the layers' outputs stands where; None: as they come
    adapters: Sequence["Adapter"] = ()
    low: Tensor | None = None  # [R, in] of all adapters, in the type of products; None: there are none
    high: Tensor | None = None  # [out, R] likewise, scaled and in order; that of a layer's adapter is for its outputs


@dataclass(frozen=True)
class Adapter:
    """What a low-rank adapter adds to one of the packed layers: scale x high x low."""

    low: nn.Parameter  # [r, in]
    high: nn.Parameter  # [rows, r]
    scale: float
    rows: slice  # of the outputs, before they are put in order
    ranks: slice  # of R


class _Product(Function):
    @staticmethod
    def forward(ctx: Any, given: Tensor, packed: Packed, gates: bool, *_: nn.Parameter) -> Tensor:
        # What is saved may be dropped and computed again; what the context holds beside is small.
        ctx.save_for_backward(given, packed.weight, packed.low, packed.high)
        ctx.order, ctx.biased, ctx.adapters, ctx.gates = packed.order, packed.bias is not None, packed.adapters, gates
        ctx.sizes = [len(parameter) for parameter in packed.parameters if parameter.dim() == 2]
        return nn.functional.linear(gpu.opened(given) if gates else given, packed.weight, packed.bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Any, ...]:
        read, weight, low, high = ctx.saved_tensors
        of_given = slope @ weight if ctx.needs_input_grad[0] else None
        if ctx.gates:
            read, of_given = gpu.opened_again(read, of_given)
        of_adapters: list[Tensor] = []
        if ctx.adapters:
            of_low = ((slope @ high).mT @ read).float()
            of_high = _unordered((slope.mT @ (read @ low.mT)).float(), ctx.order)
            for one in ctx.adapters:
                of_adapters += [of_low[one.ranks], of_high[one.rows, one.ranks] * one.scale]
        of_weights: list[Tensor | None] = [None] * (len(ctx.sizes) * (1 + ctx.biased))
        if any(ctx.needs_input_grad[3 + len(of_adapters) :]):
            of_weights = [*_unordered((slope.mT @ read).float(), ctx.order).split(ctx.sizes)]
            if ctx.biased:
                of_weights += _unordered(slope.sum(0, dtype=torch.float32), ctx.order).split(ctx.sizes)
        return of_given, None, None, *of_adapters, *of_weights


def product(given: Tensor, packed: Packed) -> Tensor:
    """[N, out] of [N, in]; the gradient of the weights comes in fp32."""
    return _product(given, packed, gates=False)


def gated_product(given: Tensor, packed: Packed) -> Tensor:
    """[N, out] of what SwiGLU makes of gates and ups [N, 2 in]."""
    # A GPU opens gates anew faster than it reads what came of them, and need not keep that.
    return _product(given, packed, gates=True) if given.is_cuda else product(gated(given), packed)


def _product(given: Tensor, packed: Packed, gates: bool) -> Tensor:
    adapters = [part for one in packed.adapters for part in (one.low, one.high)]
    return _Product.apply(given, packed, gates, *adapters, *packed.parameters)  # pyright: ignore[reportReturnType]


def _unordered(ordered: Tensor, order: Tensor | None) -> Tensor:
    return ordered if order is None else torch.empty_like(ordered).index_copy_(0, order, ordered)


class _Norm(Function):
    @staticmethod
    def forward(
        ctx: Any, given: Tensor, added: Tensor | None, weight: Tensor, floor: float, kind: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.kind = None if added is None else added.dtype
        if given.is_cuda:
            total, found, scale = gpu.normed(given, added, weight, floor, kind)
            total = given if total is None else total
        else:
            total, found, scale = cpu.normed(given, added, weight, floor, kind)
        ctx.save_for_backward(total, weight, scale)
        return total, found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_total: Tensor | None, slope: Tensor) -> tuple[Any, ...]:
        total, weight, scale = ctx.saved_tensors
        if slope.is_cuda:
            of_weight = gpu.norm_weight_slope(slope, total, scale, _COUNT) if ctx.needs_input_grad[2] else None
            return *gpu.norm_slope(slope, total, weight, scale, of_total, ctx.kind), of_weight, None, None
        learns = ctx.needs_input_grad[2]
        return *cpu.norm_slope(slope, total, weight, scale, of_total, ctx.kind, learns), None, None


def norm(given: Tensor, weight: Tensor, floor: float, kind: torch.dtype) -> Tensor:
    """RMS norm over the last axis of an fp32 tensor, computed in fp32 and given in `kind`."""
    return _Norm.apply(given, None, weight, floor, kind)[1]  # pyright: ignore[reportIndexIssue, reportOptionalSubscript]


def added_norm(
    given: Tensor, added: Tensor | None, weight: Tensor, floor: float, kind: torch.dtype
) -> tuple[Tensor, Tensor]:
    """What was given [N, D], in fp32, plus what is added to it in any precision; and the norm of that.

    Both are for use: their slopes meet in one pass.
    """
    return _Norm.apply(given, added, weight, floor, kind)  # pyright: ignore[reportReturnType]


class _Rotated(Function):
    @staticmethod
    def forward(ctx: Any, given: Tensor, angles: Tensor) -> Tensor:
        ctx.save_for_backward(angles)
        ctx.kind = given.dtype
        return _turned(given, angles)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Any, ...]:
        return _turned(slope, ctx.saved_tensors[0].conj()).to(ctx.kind), None


def rotated(given: Tensor, angles: Tensor) -> Tensor:
    """Vectors [N, heads, d], in fp32, turned by angles [N, 1, d / 2] (complex): two neighbours at a time."""
    return _Rotated.apply(given, angles)  # pyright: ignore[reportReturnType]


class _RotatedHalves(Function):
    @staticmethod
    def forward(ctx: Any, given: Tensor, cosine: Tensor, sine: Tensor, still: int) -> Tensor:
        ctx.save_for_backward(cosine, sine)
        ctx.still = still
        return gpu.turned(given, cosine, sine, given.dtype, still)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Any, ...]:
        cosine, sine = ctx.saved_tensors
        return gpu.turned(slope, cosine, -sine, slope.dtype, ctx.still), None, None, None


def rotated_halves(given: Tensor, cosine: Tensor, sine: Tensor, still: int = 0) -> Tensor:
    """Vectors [N, heads, d] turned by angles [N, 1, d / 2]: each number of the first half with one of the second.

    The last heads, so many, stay as they are.
    """
    return _RotatedHalves.apply(given, cosine, sine, still)  # pyright: ignore[reportReturnType]


def _turned(given: Tensor, angles: Tensor) -> Tensor:
    exact = given.float()
    pairs = torch.view_as_complex(exact.unflatten(-1, (-1, 2)))
    pairs = pairs * angles if exact is given else pairs.mul_(angles)  # a copy is ours
    return torch.view_as_real(pairs).flatten(-2)


class _Gated(Function):
    @staticmethod
    def forward(ctx: Any, given: Tensor) -> Tensor:
        ctx.save_for_backward(given)
        return cpu.opened(given)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (given,) = ctx.saved_tensors
        return cpu.opened_slope(given, slope)


def gated(given: Tensor) -> Tensor:
    """SwiGLU on a processor: [N, I] of gates and ups [N, 2 I]."""
    return _Gated.apply(given)  # pyright: ignore[reportReturnType]


@dataclass(frozen=True)
class Block:
    """Rows of queries side by side with the keys that they look at: which vectors stand where.

    The heads of a group follow one another. Keys that fill a row up are hidden by the bias.
    """

    queries: Tensor  # [b x H x W] among the M x H queries; what fills a row up points to the last token
    keys: Tensor  # [b x G x C] among the N x G keys
    bias: Tensor  # [b, 1, W, C]: 0 where a query looks, else minus infinity


def block(queries: Tensor, last: Tensor, keys: Tensor, heads: int, groups: int) -> Block:
    """Rows of queries [b, W] of M tokens, which look at keys [b, C] of N up to the column that is their last [b, W]."""
    hidden = torch.arange(keys.shape[1]) > last[:, None, :, None]
    of_heads, of_groups = (torch.arange(count)[:, None] for count in (heads, groups))
    return Block(
        (queries[:, None] * heads + of_heads).flatten(),
        (keys[:, None] * groups + of_groups).flatten(),
        torch.zeros(hidden.shape).masked_fill_(hidden, -math.inf),
    )


class _Attention(Function):
    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, blocks: Sequence[Block]) -> Tensor:
        ctx.sizes = (heads, groups, size) = queries.shape[1], keys.shape[1], queries.shape[2]
        ctx.blocks, kind = blocks, values.dtype
        found = values.new_zeros((queries[..., 0].numel(), size))
        queries, keys, values = (x.reshape(-1, size) for x in (queries, keys, values))
        kept = []
        for one in blocks:
            query, key, value = (
                x.index_select(0, places).view(len(one.bias) * groups, -1, size)
                for x, places in ((queries, one.queries), (keys, one.keys), (values, one.keys))
            )
            scores = torch.bmm(query, key.mT)  # which can be large, and what is left of them in bf16 coarse
            scores.view(len(one.bias), heads, *one.bias.shape[2:]).add_(one.bias)
            weights = scores.softmax(-1).to(kind)
            found.index_copy_(0, one.queries, torch.bmm(weights, value).flatten(0, 1))
            kept += [query.to(kind), key.to(kind), value, weights]
        ctx.save_for_backward(*kept)
        ctx.remembered = len(keys)
        return found.view(-1, heads * size)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Any, ...]:
        heads, groups, size = ctx.sizes
        slope = slope.reshape(-1, size)  # zero at the last token, which fills rows up
        of_queries = torch.zeros_like(slope)
        # Rows may look at the same keys, whose slopes meet in fp32.
        of_keys, of_values = (torch.zeros(ctx.remembered, size) for _ in range(2))
        saved = iter(ctx.saved_tensors)
        for one, query, key, value, weights in zip(ctx.blocks, saved, saved, saved, saved, strict=True):
            own = slope.index_select(0, one.queries).view(query.shape)
            scores = torch._softmax_backward_data(torch.bmm(own, value.mT), weights, -1, weights.dtype)
            of_queries.index_copy_(0, one.queries, torch.bmm(scores, key).flatten(0, 1))
            of_keys.index_add_(0, one.keys, torch.bmm(scores.mT, query).flatten(0, 1).float())
            of_values.index_add_(0, one.keys, torch.bmm(weights.mT, own).flatten(0, 1).float())
        return of_queries.view(-1, heads, size), *(x.view(-1, groups, size) for x in (of_keys, of_values)), None


def attention(queries: Tensor, keys: Tensor, values: Tensor, blocks: Sequence[Block]) -> Tensor:
    """[M, H x d]: what queries [M, H, d] find in keys and values [N, G, d]; queries and keys are in fp32.

    Queries come divided by the root of d. The last token of both must be one that nobody reads. Queries that stand in
    no block find zeros.
    """
    if any(one.bias.shape[-1] > LONG for one in blocks):
        return _frugal(queries, keys, values, blocks)
    return _Attention.apply(queries, keys, values, blocks)  # pyright: ignore[reportReturnType]


def _frugal(queries: Tensor, keys: Tensor, values: Tensor, blocks: Sequence[Block]) -> Tensor:
    """By PyTorch's own attention, which is slower and keeps no weights, of which long rows have too many."""
    (_, heads, size), groups = queries.shape, keys.shape[1]
    found = values.new_zeros((queries[..., 0].numel(), size))
    # Rows may look at the same keys, whose slopes meet in fp32.
    exact = [x.reshape(-1, size).float() for x in (queries, keys, values)]
    for one in blocks:
        query, key, value = (
            x.index_select(0, places).view(len(one.bias), count, -1, size)
            for x, places, count in zip(exact, (one.queries, one.keys, one.keys), (heads, groups, groups), strict=True)
        )
        key, value = (x.repeat_interleave(heads // groups, 1) for x in (key, value))
        looked = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=one.bias, scale=1.0)
        found = found.index_copy(0, one.queries, looked.flatten(0, 2).to(values.dtype))
    return found.view(-1, heads * size)


class _Judged(Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        logprobs, entropy, total = gpu.judged(logits, targets, temperature)
        ctx.save_for_backward(logits, targets, total, entropy)
        ctx.temperature = temperature
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_logprobs: Tensor, of_entropy: Tensor) -> tuple[Any, ...]:
        logits, targets, total, entropy = ctx.saved_tensors
        slopes = total, entropy, of_logprobs, of_entropy
        return gpu.judged_slope(logits, targets, ctx.temperature, *slopes), None, None


def judged(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probs of the targets [N] and entropies in nats, in fp32, by logits [N, V] over the temperature."""
    if logits.is_cuda:
        return _Judged.apply(logits, targets, temperature)  # pyright: ignore[reportReturnType]
    logprobs = torch.log_softmax(logits.float() / temperature, -1)
    return logprobs.gather(1, targets[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)
