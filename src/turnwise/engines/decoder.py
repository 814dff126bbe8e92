"""The forward pass of the family for sampling, in as few operations as there can be.

The products of a token take microseconds, so what lies around them counts: Python modules, casts, products that could
be one. It computes what transformers' modules compute, to rounding.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from turnwise import gpu
from turnwise.engines.attention import attention_of
from turnwise.engines.cache import Cache
from turnwise.family import in_family, is_adapted
from turnwise.kernels import padded

_SMALL = 300_000_000  # parameters of a model on a processor up to which the copy of the weights costs little
_RECUR = 64  # tokens up to which every number of them comes again and again
_WORDS = 4096  # of a vocabulary, of each of which a processor keeps what the first layer makes of it


class _Linear:
    """Products of the same input as one; of a normed input where a norm is given; with their rows in another order."""

    def __init__(self, parts: Sequence[Any], bf16: bool, norm: Any = None, order: Tensor | None = None):
        self._parts, self._bf16, self._norm, self._order = parts, bf16, norm, order
        self._packed = bf16 and parts[0].weight.device.type == "cpu" and _can_pack()
        self._product = nn.functional.linear
        if self._packed:
            self._product = partial(torch.ops.mkldnn._linear_pointwise.default, attr="none", scalars=[], algorithm="")
        self._weight, self._bias = self._made()

    def load(self) -> None:
        """Take the weights as they are now, in the place of the old ones: recorded passes look for them there."""
        weight, bias = self._made()
        if self._packed:
            self._weight = weight
        else:
            self._weight.copy_(weight)
        if bias is not None:
            self._bias.copy_(bias)

    def _made(self) -> tuple[Tensor, Any]:
        """The weight [out, in], and the bias [out], if there is one."""
        weight = torch.cat(tuple(map(_weight, self._parts)))
        bias = None if self._parts[0].bias is None else torch.cat(tuple(part.bias for part in self._parts))
        if self._norm is not None:
            weight = weight * (self._norm.weight * weight.shape[1] ** 0.5)
        if self._order is not None:
            weight, bias = weight[self._order], None if bias is None else bias[self._order]
        if self._bf16:
            weight, bias = weight.bfloat16(), None if bias is None else bias.bfloat16()
        if self._packed:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight)  # once, and not anew in every product
        elif weight.device.type == "cpu":
            weight = weight.mT.contiguous().mT  # as a product of few tokens reads it fastest
        return weight, bias

    def __call__(self, given: Tensor) -> Tensor:
        """[N, out] of [N, in]"""
        count, kind = len(given), self._weight.dtype
        if not self._packed or count <= _RECUR:
            return self._product(given.to(kind), self._weight, self._bias)
        # A processor prepares every new shape of a product anew, so only few are let occur.
        filled = given.new_empty((padded(count), given.shape[1]), dtype=kind)
        filled[:count], filled[count:] = given, 0
        return self._product(filled, self._weight, self._bias)[:count]


class _Layer:
    """The products; those after a norm hold its weights."""

    def __init__(self, layer: Any, heads: int, groups: int, bf16: bool):
        attention, mlp = layer.self_attn, layer.mlp
        size, device = attention.head_dim, attention.q_proj.weight.device
        rotated = _neighbours(heads + groups, size)
        if device.type == "cuda":  # whose formula rotates each half of a head with the other
            rotated = torch.arange(len(rotated))
        order = torch.cat([rotated, torch.arange(len(rotated), len(rotated) + groups * size)])
        products = [attention.q_proj, attention.k_proj, attention.v_proj]
        self.qkv = _Linear(products, bf16, layer.input_layernorm, order)
        self.out = _Linear([attention.o_proj], bf16)
        self.gate_up = _Linear([mlp.gate_proj, mlp.up_proj], bf16, layer.post_attention_layernorm)
        self.down = _Linear([mlp.down_proj], bf16)
        self._norms: list[Any] = []  # of the heads of queries, and of keys
        if hasattr(attention, "q_norm"):
            self._norms = [attention.q_norm] * heads + [attention.k_norm] * groups
        self._order = rotated[:size]
        self.head_norms = self._made() if self._norms else None  # [heads + groups, d]

    def load(self) -> None:
        """Take the weights as they are now, in the place of the old ones."""
        for product in (self.qkv, self.out, self.gate_up, self.down):
            product.load()
        if self.head_norms is not None:
            self.head_norms.copy_(self._made())

    def _made(self) -> Tensor:
        return torch.stack([norm.weight[self._order] for norm in self._norms]) * len(self._order) ** 0.5


class Decoder:
    """Holds copies of the weights, which `load` takes anew; with `bf16` the products with them are in it.

    Where adapters are in use, they are added to the weights.
    """

    def __init__(self, model: PreTrainedModel, bf16: bool):
        config: Any = model.config
        self._trunk: Any = model.get_decoder()
        self._bf16 = bf16
        self._heads, self._groups = config.num_attention_heads, config.num_key_value_heads
        sizes = config.hidden_size, self._trunk.layers[0].self_attn.head_dim
        eps, self._device = config.rms_norm_eps, model.device
        self._eps = {size: torch.tensor((size * eps) ** 0.5, device=self._device) for size in sizes}  # of RMS norms
        self._on_gpu = model.device.type == "cuda"
        self._dtype = torch.bfloat16 if bf16 else torch.float32
        self._angles = torch.empty(0)  # [positions, 1, d / 2] as complex numbers
        with torch.no_grad():
            self._layers = [_Layer(layer, self._heads, self._groups, bf16) for layer in self._trunk.layers]
            self._head = _Linear([model.get_output_embeddings()], bf16, self._trunk.norm)
            self._token_table = self._table()

    @staticmethod
    def fits(model: PreTrainedModel, bf16: bool) -> bool:
        """Whether it is one of the family, and on a processor a small one, or one that is read in bf16 anyway."""
        head: Any = model.get_output_embeddings()
        plain = type(head) is nn.Linear and head.weight.dtype == torch.float32
        kind = model.device.type
        able = kind == "cuda" or (kind == "cpu" and (bf16 or model.num_parameters() <= _SMALL))
        return plain and able and in_family(model.get_decoder())

    def load(self) -> None:
        """Take the model's weights as they are now."""
        with torch.no_grad():
            for part in (*self._layers, self._head):
                part.load()
            self._token_table = self._table()

    def _table(self) -> Tensor | None:
        """[V, (heads + 2 x groups) x d] what the first layer makes of each word, where they are few."""
        words = self._trunk.embed_tokens.weight
        few = len(words) <= _WORDS and not self._on_gpu
        return self._layers[0].qkv(self._normalised(words)) if few else None

    def logits(self, ids: Tensor, positions: Tensor, counts: Sequence[int], kept: Cache, every: bool = False) -> Tensor:
        """[R, V] after the last of so many new tokens of each row; [N, V] after every one of them.

        Ids and positions are [N], row after row, and have their place in what is kept.
        """
        attention = attention_of(positions, counts, self._groups, kept, self._bf16)
        angles = self._angles_at(positions, kept.columns)
        hidden = nn.functional.embedding(ids, self._trunk.embed_tokens.weight)  # [N, D]
        for number, layer in enumerate(self._layers):
            words = self._token_table if number == 0 else None
            given = layer.qkv(self._normalised(hidden)) if words is None else words[ids]
            parts = self._rotated(layer, given, angles)
            chosen = None
            if number == len(self._layers) - 1 and not every:  # from here on nobody looks at the others
                chosen = torch.tensor(counts, device=self._device).cumsum(0) - 1
                hidden = hidden[chosen]
            hidden = self._sum(hidden, layer.out(attention(parts, number, chosen)))
            hidden = self._sum(hidden, layer.down(self._swiglu(layer.gate_up(self._normalised(hidden)))))
        return self._head(self._normalised(hidden)).float()

    def _angles_at(self, positions: Tensor, stop: int) -> Tensor:
        """The rotary angles [N, 1, d / 2] of positions [N] before `stop`."""
        if stop > len(self._angles):
            every = torch.arange(2 * stop, device=self._device)
            cosine, sine = self._trunk.rotary_emb(torch.empty(0, device=self._device), every[None])
            half = cosine.shape[-1] // 2
            self._angles = torch.complex(cosine[0, :, None, :half], sine[0, :, None, :half])
        return self._angles[positions]

    def _rotated(self, layer: _Layer, given: Tensor, angles: Tensor) -> Tensor:
        """[N, heads + 2 x groups, d], which are overwritten, with queries and keys rotated by angles [N, 1, d / 2]."""
        parts = given.unflatten(-1, (self._heads + 2 * self._groups, -1))
        if not self._on_gpu or layer.head_norms is not None:
            parts = parts.float()
        rotated = parts[:, : -self._groups]
        if layer.head_norms is not None:
            rotated.copy_(self._normalised(rotated) * layer.head_norms)
        if self._on_gpu:
            cosine, sine = torch.view_as_real(angles).unbind(-1)
            return gpu.rotary(parts, cosine, sine, torch.float32, self._groups)
        torch.view_as_complex(rotated.unflatten(-1, (-1, 2))).mul_(angles)
        return parts

    def _normalised(self, given: Tensor) -> Tensor:
        """RMS norm, but for the weights and the square root of the width, which `_Linear` puts into what follows."""
        eps = self._eps[given.shape[-1]]
        if self._on_gpu:
            return gpu.normalised(given, eps, self._dtype)
        return given / torch.hypot(torch.linalg.vector_norm(given, dim=-1, keepdim=True), eps)

    def _swiglu(self, both: Tensor) -> Tensor:
        if self._on_gpu:
            return gpu.swiglu(both)
        gate, up = both.chunk(2, -1)
        return nn.functional.silu(gate) * up

    def _sum(self, hidden: Tensor, more: Tensor) -> Tensor:
        return hidden + (more if self._on_gpu else more.float())  # adding two types takes a processor longer


def _neighbours(heads: int, size: int) -> Tensor:
    """[heads x size]: in which order of a product's outputs the pairs that are rotated together are neighbours."""
    pairs = torch.arange(size).view(2, -1).T.flatten()
    return (torch.arange(heads)[:, None] * size + pairs).flatten()


def _weight(part: Any) -> Tensor:
    """[out, in] of a linear layer, with its adapters."""
    if not is_adapted(part) or part.disable_adapters:
        return part.weight
    return part.weight + sum(part.get_delta_weight(name) for name in part.active_adapters)


def _can_pack() -> bool:
    """Whether this processor has products in bf16 of weights that lie as oneDNN wants them."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
