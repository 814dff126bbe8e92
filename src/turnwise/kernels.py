# pyright: reportIncompatibleMethodOverride=false, reportPrivateImportUsage=false
"""What the layers of a decoder compute, forwards and backwards, in as few operations as there can be.

A small model's matrix products take a millisecond or two on a processor; what lies around them must not take longer.
Each function here has the backward pass that one would write by hand: nothing is cast, copied or kept twice. What lies
between matrix products is compiled, of formulas for a GPU (gpu.py) and of loops for a processor (cpu.py).

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
from turnwise.cpu import Side

# A processor prepares every new shape of a matrix product anew, so only few are let occur: multiples of so many
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
    adapters: Sequence["Adapter"] = ()
    low: Tensor | None = None  # [R, in] of all adapters, in the type of products; None: there are none
    high: Tensor | None = None  # [out, R] likewise, scaled; that of a layer's adapter is for its outputs


@dataclass(frozen=True)
class Adapter:
    """What a low-rank adapter adds to one of the packed layers: scale x high x low."""

    low: nn.Parameter  # [r, in]
    high: nn.Parameter  # [rows, r]
    scale: float
    rows: slice  # of the outputs
    ranks: slice  # of R


class _Linear(Function):
    @staticmethod
    def forward(ctx: Any, given: Tensor, packed: Packed, gates: bool, *_: nn.Parameter) -> Tensor:
        # What is saved may be dropped and computed again; what the context holds beside is small.
        ctx.save_for_backward(given, packed.weight, packed.low, packed.high)
        ctx.biased, ctx.adapters, ctx.gates = packed.bias is not None, packed.adapters, gates
        ctx.sizes = [len(parameter) for parameter in packed.parameters if parameter.dim() == 2]
        return nn.functional.linear(gpu.swiglu(given) if gates else given, packed.weight, packed.bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        read, weight, low, high = ctx.saved_tensors
        given_grad = grad @ weight if ctx.needs_input_grad[0] else None
        if ctx.gates:
            read, given_grad = gpu.swiglu_and_grad(read, given_grad)
        adapter_grads: list[Tensor] = []
        if ctx.adapters:
            low_grad = ((grad @ high).mT @ read).float()
            high_grad = (grad.mT @ (read @ low.mT)).float()
            for one in ctx.adapters:
                adapter_grads += [low_grad[one.ranks], high_grad[one.rows, one.ranks] * one.scale]
        weight_grads: list[Tensor | None] = [None] * (len(ctx.sizes) * (1 + ctx.biased))
        if any(ctx.needs_input_grad[3 + len(adapter_grads) :]):
            weight_grads = [*(grad.mT @ read).float().split(ctx.sizes)]
            if ctx.biased:  # a matrix product is faster than a sum
                weight_grads += (grad.new_ones(1, len(grad)) @ grad)[0].float().split(ctx.sizes)
        return given_grad, None, None, *adapter_grads, *weight_grads


def linear(given: Tensor, packed: Packed) -> Tensor:
    """[N, out] of [N, in]; the gradient of the weights comes in fp32."""
    return _linear(given, packed, gates=False)


def swiglu_linear(given: Tensor, packed: Packed) -> Tensor:
    """[N, out] of what SwiGLU makes of gates and ups [N, 2 in]."""
    # A GPU opens gates anew faster than it reads what came of them, and need not keep that.
    return _linear(given, packed, gates=True) if given.is_cuda else linear(swiglu(given), packed)


def _linear(given: Tensor, packed: Packed, gates: bool) -> Tensor:
    adapters = [part for one in packed.adapters for part in (one.low, one.high)]
    return _Linear.apply(given, packed, gates, *adapters, *packed.parameters)  # pyright: ignore[reportReturnType]


class _RMSNorm(Function):
    @staticmethod
    def forward(
        ctx: Any, given: Tensor, added: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.dtype = None if added is None else added.dtype
        if given.is_cuda:
            total, found, scale = gpu.rms_norm(given, added, weight, eps, dtype)
            total = given if total is None else total
        else:
            total, found, scale = cpu.rms_norm(given, added, weight, eps, dtype)
        ctx.save_for_backward(total, weight, scale)
        return total, found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, total_grad: Tensor | None, grad: Tensor) -> tuple[Any, ...]:
        total, weight, scale = ctx.saved_tensors
        if grad.is_cuda:
            weight_grad = gpu.rms_norm_weight_grad(grad, total, scale, _COUNT) if ctx.needs_input_grad[2] else None
            return *gpu.rms_norm_backward(grad, total, weight, scale, total_grad, ctx.dtype), weight_grad, None, None
        learns = ctx.needs_input_grad[2]
        return *cpu.rms_norm_backward(grad, total, weight, scale, total_grad, ctx.dtype, learns), None, None


def rms_norm(given: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """RMS norm over the last axis of an fp32 tensor, computed in fp32 and given in `dtype`."""
    return _RMSNorm.apply(given, None, weight, eps, dtype)[1]  # pyright: ignore[reportIndexIssue, reportOptionalSubscript]


def add_rms_norm(
    given: Tensor, added: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """What was given [N, D], in fp32, plus what is added to it in any precision; and the RMS norm of that.

    Both are for use: their gradients meet in one pass.
    """
    return _RMSNorm.apply(given, added, weight, eps, dtype)  # pyright: ignore[reportReturnType]


class _Rotary(Function):
    @staticmethod
    def forward(ctx: Any, given: Tensor, cosine: Tensor, sine: Tensor, still: int) -> Tensor:
        ctx.save_for_backward(cosine, sine)
        ctx.still = still
        return gpu.rotary(given, cosine, sine, given.dtype, still)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        cosine, sine = ctx.saved_tensors
        return gpu.rotary(grad, cosine, -sine, grad.dtype, ctx.still), None, None, None


def rotary(given: Tensor, cosine: Tensor, sine: Tensor, still: int = 0) -> Tensor:
    """Vectors [N, heads, d] rotated by angles [N, 1, d / 2]: each number of the first half with one of the second.

    The last heads, so many, stay as they are.
    """
    return _Rotary.apply(given, cosine, sine, still)  # pyright: ignore[reportReturnType]


class _SwiGLU(Function):
    @staticmethod
    def forward(ctx: Any, given: Tensor) -> Tensor:
        ctx.save_for_backward(given)
        return cpu.swiglu(given)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (given,) = ctx.saved_tensors
        return cpu.swiglu_backward(given, grad)


def swiglu(given: Tensor) -> Tensor:
    """SwiGLU on a processor: [N, I] of gates and ups [N, 2 I]."""
    return _SwiGLU.apply(given)  # pyright: ignore[reportReturnType]


@dataclass(frozen=True)
class Block:
    """Rows of queries side by side with the keys that they look at, by their places; -1 fills rows up."""

    queries: Tensor  # [b, W] among M
    keys: Tensor  # [b, C] among N
    bias: Tensor  # [b, 1, W, C]: 0 where a query looks, else minus infinity


def block(queries: Tensor, last: Tensor, keys: Tensor) -> Block:
    """Rows of queries [b, W], which look at keys [b, C] up to the column that is their last [b, W]."""
    hidden = torch.arange(keys.shape[1]) > last[:, None, :, None]
    return Block(queries, keys, torch.zeros(hidden.shape).masked_fill_(hidden, -math.inf))


@dataclass(frozen=True)
class View:
    """Who looks at whom, and from where: queries and keys are rotated by the angles of their positions.

    Those of queries are scaled by what scores are to be divided by.
    """

    blocks: Sequence[Block]
    of_queries: Tensor  # [M, d] cosines, then sines
    of_keys: Tensor  # [N, d]
    words: Tensor | None = None  # [N], and M is N: of which words, that have the vectors, tokens are

    def sides(self, one: Block, heads: int, groups: int) -> tuple[Side, Side, Side]:
        """Queries, keys and values of a block."""
        return (
            Side(slice(0, heads), one.queries, self.of_queries, self.words),
            Side(slice(0, groups), one.keys, self.of_keys, self.words),
            Side(slice(groups, 2 * groups), one.keys, None, self.words),
        )


class _Attention(Function):
    @staticmethod
    def forward(ctx: Any, queries: Tensor, memory: Tensor, view: View) -> Tensor:
        (_, heads, size), groups, dtype = queries.shape, memory.shape[1] // 2, memory.dtype
        ctx.view, ctx.shapes, ctx.dtype = view, (queries.shape, memory.shape), queries.dtype
        found = memory.new_zeros((len(view.of_queries), heads, size))
        kept: list[Tensor] = []
        for one in view.blocks:
            of_query, of_key, of_value = view.sides(one, heads, groups)
            rows = len(one.keys) * groups, -1, size  # the heads of a group follow one another
            exact, query = (x.view(rows) for x in cpu.gather(queries, of_query, torch.float32, dtype))
            key_exact, key = (x.view(rows) for x in cpu.gather(memory, of_key, torch.float32, dtype))
            (value,) = (x.view(rows) for x in cpu.gather(memory, of_value, dtype))
            scores = torch.bmm(exact, key_exact.mT)  # which can be large, and what is left of them in bf16 coarse
            scores.view(len(one.keys), heads, *one.bias.shape[2:]).add_(one.bias)
            weights = torch.softmax(scores, -1, out=scores).to(dtype)
            cpu.scatter_add(torch.bmm(weights, value), Side(of_query.heads, one.queries), found)
            kept += [query, key, value, weights]
        ctx.save_for_backward(*kept)
        return found.flatten(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        view, dtype = ctx.view, grad.dtype
        # Rows may look at the same keys, and tokens be the same word: their gradients meet in fp32. A query asks once.
        of_queries = torch.zeros(ctx.shapes[0], dtype=torch.float32 if view.words is not None else ctx.dtype)
        of_memory = torch.zeros(ctx.shapes[1])
        heads, groups = of_queries.shape[1], of_memory.shape[1] // 2
        grad = grad.unflatten(1, (heads, -1))
        saved = iter(ctx.saved_tensors)
        for one, query, key, value, weights in zip(view.blocks, saved, saved, saved, saved, strict=True):
            of_query, of_key, of_value = view.sides(one, heads, groups)
            own = cpu.gather(grad, Side(of_query.heads, one.queries), dtype)[0].view(query.shape)
            scores = torch._softmax_backward_data(torch.bmm(own, value.mT), weights, -1, dtype)
            cpu.scatter_add(torch.bmm(scores, key), of_query, of_queries)
            cpu.scatter_add(torch.bmm(scores.mT, query), of_key, of_memory)
            cpu.scatter_add(torch.bmm(weights.mT, own), of_value, of_memory)
        return of_queries.to(ctx.dtype), of_memory.to(dtype), None


def attention(queries: Tensor, memory: Tensor, view: View) -> Tensor:
    """[M, H x d]: what queries [M, H, d] find in memory [N, 2 G, d], keys and then values, in the type of that.

    Or both are of words, of which `view` knows. Queries that stand in no block find zeros.
    """
    if any(one.bias.shape[-1] > LONG for one in view.blocks):
        return _frugal(queries, memory, view)
    return _Attention.apply(queries, memory, view)  # pyright: ignore[reportReturnType]


class _Gather(Function):
    @staticmethod
    def forward(ctx: Any, given: Tensor, side: Side) -> Tensor:
        ctx.side, ctx.shape, ctx.dtype = side, given.shape, given.dtype
        return cpu.gather(given, side, torch.float32)[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        sums = torch.zeros(ctx.shape)
        cpu.scatter_add(grad.contiguous(), ctx.side, sums)
        return sums.to(ctx.dtype), None


def _frugal(queries: Tensor, memory: Tensor, view: View) -> Tensor:
    """By PyTorch's own attention, which is slower and keeps no weights, of which long rows have too many."""
    (_, heads, size), groups = queries.shape, memory.shape[1] // 2
    found = memory.new_zeros((len(view.of_queries), heads * size))
    for one in view.blocks:
        sides = view.sides(one, heads, groups)
        query, *read = (_Gather.apply(x, side) for x, side in zip((queries, memory, memory), sides, strict=True))
        read: list[Any] = [x.repeat_interleave(heads // groups, 1) for x in read]
        seen = nn.functional.scaled_dot_product_attention(query, *read, attn_mask=one.bias, scale=1.0)
        used = one.queries >= 0
        found = found.index_copy(0, one.queries[used], seen.transpose(1, 2)[used].flatten(1).to(memory.dtype))
    return found


class _LogprobsAndEntropy(Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        logprobs, entropy, total = gpu.logprobs_and_entropy(logits, targets, temperature)
        ctx.save_for_backward(logits, targets, total, entropy)
        ctx.temperature = temperature
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, logprobs_grad: Tensor, entropy_grad: Tensor) -> tuple[Any, ...]:
        logits, targets, total, entropy = ctx.saved_tensors
        grads = total, entropy, logprobs_grad, entropy_grad
        return gpu.logprobs_and_entropy_backward(logits, targets, ctx.temperature, *grads), None, None


def logprobs_and_entropy(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probs of the targets [N] and entropies in nats, in fp32, by logits [N, V] over the temperature."""
    if logits.is_cuda:
        return _LogprobsAndEntropy.apply(logits, targets, temperature)  # pyright: ignore[reportReturnType]
    logprobs = torch.log_softmax(logits.float() / temperature, -1)
    return logprobs.gather(1, targets[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)
