"""The forward pass of the family for sampling, in as few operations as there can be.

The products of a token take microseconds, so what lies around them counts: Python modules, casts, products that could
be one. It computes what transformers' modules compute, to rounding.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from turnwise.family import in_family, is_adapted, neighbours
from turnwise.fused import padded

_SMALL = 300_000_000  # parameters of a model on a processor up to which the copy of the weights costs little
_RECUR = 64  # tokens up to which every number of them comes again and again
_FEW = 8  # tokens of a row up to which attention is faster as two products
_MANY = 8  # rows that are worth reading in two parts, so that less of them is padding

Remember = Callable[[Tensor, int, Tensor | None], Tensor]
"""Keeps a layer's new keys and values [N, 2, groups, d], which stand at these places among R x T (None: at all).

Returns all that are looked at, [2, R, groups, C, d].
"""


class _Linear:
    """Products of the same input as one; of a normed input where a norm is given; with their rows in another order."""

    def __init__(self, parts: Sequence[Any], bf16: bool, norm: Any = None, order: Tensor | None = None):
        weight = torch.cat(tuple(map(_weight, parts)))
        bias = None if parts[0].bias is None else torch.cat(tuple(part.bias for part in parts))
        if norm is not None:
            weight = weight * (norm.weight * weight.shape[1] ** 0.5)
        if order is not None:
            weight, bias = weight[order], None if bias is None else bias[order]
        if bf16:
            weight, bias = weight.bfloat16(), None if bias is None else bias.bfloat16()
        self._product = nn.functional.linear
        self._packed = bf16 and weight.device.type == "cpu" and _can_pack()
        if self._packed:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight)  # once, and not anew in every product
            self._product = partial(torch.ops.mkldnn._linear_pointwise.default, attr="none", scalars=[], algorithm="")
        self._weight, self._bias = weight, bias

    def __call__(self, given: Tensor) -> Tensor:
        """[N, out] of [N, in]"""
        count, kind = len(given), self._weight.dtype
        if not self._packed or count <= _RECUR:
            return self._product(given.to(kind), self._weight, self._bias)
        # A processor prepares every new shape of a product anew, so only few are let occur.
        filled = given.new_empty((padded(count), given.shape[1]), dtype=kind)
        filled[:count], filled[count:] = given, 0
        return self._product(filled, self._weight, self._bias)[:count]


@dataclass(frozen=True)
class _Layer:
    """The products; those after a norm hold its weights."""

    qkv: _Linear
    out: _Linear
    gate_up: _Linear
    down: _Linear
    head_norms: Tensor | None  # of queries and keys, [heads + groups, d]


@dataclass(frozen=True)
class _New:
    """The tokens that are read now: N of them behind one another, or in R rows padded on the right to T columns."""

    shape: torch.Size  # R and T
    places: Tensor | None  # [N] in the rows; None: there is no padding
    lasts: Tensor  # [R] the column of the last of each row
    ends: Tensor  # [R] its place among the N
    mask: Tensor | None  # what attention adds to its scores, [R, 1, T, C]; None: the causal mask alone
    parts: Sequence[tuple[slice, int, int]]  # rows of like length, and the T and C that are enough for them

    def rows(self, flat: Tensor) -> Tensor:
        """[R, T, heads, d] of [N, heads, d]."""
        if self.places is not None:
            flat = flat.new_zeros((self.shape.numel(), *flat.shape[1:])).index_copy_(0, self.places, flat)
        return flat.view(*self.shape, *flat.shape[1:])

    def flat(self, rows: Tensor) -> Tensor:
        """[N, heads x d] of [R, T, heads, d]."""
        flat = rows.reshape(self.shape.numel(), -1)
        return flat if self.places is None else flat[self.places]

    def last(self) -> "_New":
        """Only the last token of each row."""
        every = torch.arange(len(self.lasts), device=self.lasts.device)
        if self.mask is None:
            columns = torch.arange(self.shape[1], device=self.lasts.device)
            mask = _additive(columns <= self.lasts[:, None, None, None])
        else:
            mask = self.mask[every, :, self.lasts, None]
        return _New(torch.Size((len(every), 1)), None, torch.zeros_like(self.lasts), every, mask, ())


class Decoder:
    """Holds copies of the weights, which `load` takes anew; with `bf16` the products with them are in it.

    Where adapters are in use, they are added to the weights.
    """

    def __init__(self, model: PreTrainedModel, bf16: bool):
        config: Any = model.config
        self._trunk: Any = model.get_decoder()
        self._lm_head: Any = model.get_output_embeddings()
        self._bf16 = bf16
        self._heads, self._groups = config.num_attention_heads, config.num_key_value_heads
        sizes = config.hidden_size, self._trunk.layers[0].self_attn.head_dim
        eps, self._device = config.rms_norm_eps, model.device
        self._floor = {size: torch.tensor((size * eps) ** 0.5, device=self._device) for size in sizes}  # of RMS norms
        self._angles = torch.empty(0)  # [positions, 1, d / 2] as complex numbers
        self.load()

    @staticmethod
    def fits(model: PreTrainedModel) -> bool:
        """Whether it is one of the family, and on a processor a small one."""
        head: Any = model.get_output_embeddings()
        plain = type(head) is nn.Linear and head.weight.dtype == torch.float32
        kind = model.device.type
        able = kind == "cuda" or (kind == "cpu" and model.num_parameters() <= _SMALL)
        return plain and able and in_family(model.get_decoder(), adapted=True)

    def load(self) -> None:
        """Take the model's weights as they are now."""
        self._layers: list[_Layer] = []  # first, as a second copy may not fit
        with torch.no_grad():
            self._layers = [self._layer(layer) for layer in self._trunk.layers]
            self._head = _Linear([self._lm_head], self._bf16, self._trunk.norm)

    def logits(
        self, ids: Tensor, positions: Tensor, mask: Tensor, lasts: Tensor, remember: Remember, every: bool = False
    ) -> Tensor:
        """[R, V] after the last of each row's new tokens; [N, V] after every one of them.

        Ids and positions are [R, T], padded on the right behind column `lasts` [R], which is on the CPU; the mask of
        attention is [R, 1, T, C], true where a token is looked at.
        """
        new = _new(positions, mask, lasts)
        angles = self._angles_at(positions, mask.shape[-1])
        if new.places is not None:
            ids, angles = ids.flatten()[new.places], angles[new.places]
        hidden = nn.functional.embedding(ids.flatten(), self._trunk.embed_tokens.weight)  # [N, D]
        for number, layer in enumerate(self._layers):
            parts = self._query_key_value(layer, self._unit(hidden), angles)
            query, memory = parts.split((self._heads, 2 * self._groups), 1)
            keys, values = remember(memory.unflatten(1, (2, -1)), number, new.places)
            if number == len(self._layers) - 1 and not every:  # from here on nobody looks at the others
                query, hidden = query[new.ends], hidden[new.ends]
                new = new.last()
            attention = self._of_prompts if new.shape[1] > _FEW else self._of_tokens
            found = attention(new.rows(query), keys, values, new)
            hidden = hidden + layer.out(new.flat(found)).float()
            gate, up = layer.gate_up(self._unit(hidden)).chunk(2, -1)
            hidden = hidden + layer.down(nn.functional.silu(gate) * up).float()  # adding two types takes longer
        return self._head(self._unit(hidden)).float()

    def _angles_at(self, positions: Tensor, stop: int) -> Tensor:
        """The rotary angles [R x T, 1, d / 2] of positions [R, T] before `stop`."""
        if stop > len(self._angles):
            every = torch.arange(2 * stop, device=self._device)
            cosine, sine = self._trunk.rotary_emb(torch.empty(0, device=self._device), every[None])
            half = cosine.shape[-1] // 2
            self._angles = torch.complex(cosine[0, :, None, :half], sine[0, :, None, :half])
        return self._angles[positions.flatten()]

    def _query_key_value(self, layer: _Layer, given: Tensor, angles: Tensor) -> Tensor:
        """[N, heads + 2 x groups, d] of [N, D], queries and keys rotated by angles [N, 1, d / 2]."""
        parts = layer.qkv(given).float().unflatten(-1, (self._heads + 2 * self._groups, -1))
        rotated = parts[:, : -self._groups]
        if layer.head_norms is not None:
            rotated.copy_(self._unit(rotated) * layer.head_norms)
        torch.view_as_complex(rotated.unflatten(-1, (-1, 2))).mul_(angles)
        return parts

    def _of_prompts(self, query: Tensor, keys: Tensor, values: Tensor, new: _New) -> Tensor:
        """Attention of queries [R, T, heads, d] over keys and values [R, groups, C, d], as [R, T, heads, d]."""
        found, repeat = torch.empty_like(query), self._heads // self._groups
        for rows, times, columns in new.parts:
            q, k, v = query[rows, :times].transpose(1, 2), keys[rows, :, :columns], values[rows, :, :columns]
            k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
            mask = None if new.mask is None else new.mask[rows, :, :times, :columns]
            if self._bf16 and query.is_cuda:  # a processor computes it in fp32, where bf16 is not always faster
                q, k, v = q.bfloat16(), k.bfloat16(), v.bfloat16()
                mask = None if mask is None else mask.bfloat16()
            attention = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
            found[rows, :times] = attention.transpose(1, 2)
        return found

    def _of_tokens(self, query: Tensor, keys: Tensor, values: Tensor, new: _New) -> Tensor:
        """The same for a few tokens a row, where two products are faster."""
        rows, times, heads, size = query.shape
        repeat = heads // self._groups
        query = query.unflatten(2, (self._groups, repeat)).transpose(1, 2).reshape(-1, times * repeat, size)
        keys, values = keys.flatten(0, 1), values.flatten(0, 1)
        assert new.mask is not None
        scores = torch.bmm(query, keys.mT).view(rows, self._groups, times, repeat, -1)
        scores = torch.add(new.mask[:, :, :, None], scores, alpha=size**-0.5)
        found = torch.bmm(scores.softmax(-1).view(len(query), times * repeat, -1), values)
        return found.view(rows, self._groups, times, repeat, size).transpose(1, 2).flatten(2, 3)

    def _unit(self, given: Tensor) -> Tensor:
        """RMS norm, but for the weights and the square root of the width, which `_Linear` puts into what follows."""
        size = torch.linalg.vector_norm(given, dim=-1, keepdim=True)
        return given / torch.hypot(size, self._floor[given.shape[-1]])

    def _layer(self, layer: Any) -> _Layer:
        attention, perceptron = layer.self_attn, layer.mlp
        size, norms = attention.head_dim, None
        rotated = neighbours(self._heads + self._groups, size)
        order = torch.cat([rotated, torch.arange(len(rotated), len(rotated) + self._groups * size)])
        if hasattr(attention, "q_norm"):
            both = [attention.q_norm] * self._heads + [attention.k_norm] * self._groups
            norms = torch.stack([norm.weight[rotated[:size]] for norm in both]) * size**0.5
        products = [attention.q_proj, attention.k_proj, attention.v_proj]
        return _Layer(
            _Linear(products, self._bf16, layer.input_layernorm, order),
            _Linear([attention.o_proj], self._bf16),
            _Linear([perceptron.gate_proj, perceptron.up_proj], self._bf16, layer.post_attention_layernorm),
            _Linear([perceptron.down_proj], self._bf16),
            norms,
        )


def _new(positions: Tensor, mask: Tensor, lasts: Tensor) -> _New:
    (rows, times), device = positions.shape, positions.device
    if times == 1 or int(lasts.min()) == times - 1:  # on a GPU passes of one token are recorded: no number is looked at
        places, ends = None, torch.arange(times - 1, rows * times, times, device=device)
        lasts = torch.full_like(ends, times - 1)
    else:
        used = torch.arange(times) <= lasts[:, None]
        places, ends = used.flatten().nonzero()[:, 0].to(device), (used.sum(1).cumsum(0) - 1).to(device)
    some = _additive(mask) if times <= _FEW or positions[:, 0].any() else None
    apart = device.type == "cpu" and times > _FEW  # on a GPU the numbers would have to be waited for
    parts = _parts(positions, lasts) if apart else [(slice(rows), times, mask.shape[-1])]
    return _New(positions.shape, places, lasts.to(device), ends, some, parts)


def _parts(positions: Tensor, lasts: Tensor) -> list[tuple[slice, int, int]]:
    """Halves of the rows, where there are many, with the most new tokens and the most columns of each."""
    half = -(-len(lasts) // 2) if len(lasts) >= _MANY else len(lasts)
    reach = positions[:, 0] + lasts
    halves = [slice(start, start + half) for start in range(0, len(lasts), half)]
    return [(rows, 1 + int(lasts[rows].max()), 1 + int(reach[rows].max())) for rows in halves]


def _additive(mask: Tensor) -> Tensor:
    """What attention adds to its scores: minus infinity where a mask is false, else zero."""
    return torch.where(mask, 0.0, -torch.inf)


def _weight(part: Any) -> Tensor:
    """[out, in] of a linear layer, with its adapters."""
    if not is_adapted(part) or part.disable_adapters:
        return part.weight
    return part.weight + sum(part.get_delta_weight(name) for name in part.active_adapters)


def _can_pack() -> bool:
    """Whether this processor has products in bf16 of weights that lie as oneDNN wants them."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
