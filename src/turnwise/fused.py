"""Reads a line by the kernels: what transformers' modules compute, to rounding, in fewer and shorter operations.

The last layer computes queries, and all behind them, only where somebody looks.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from turnwise import kernels
from turnwise.batch import Line
from turnwise.family import in_family, neighbours
from turnwise.kernels import Block, Packed

_COUNT = 64  # a processor prepares every new shape of a product anew, so only few are let occur
_WIDTH = 16  # likewise for the rows side by side of which attention is taken


def can_read(trunk: PreTrainedModel) -> bool:
    """Whether it is one of those whose layers we know, on a processor, and computes no activations twice."""
    twice = any(getattr(part, "gradient_checkpointing", False) for part in trunk.modules())
    return trunk.device.type == "cpu" and in_family(trunk) and not twice


def padded(count: int) -> int:
    """How many tokens or places are computed for so many."""
    return -(-count // _COUNT) * _COUNT


def read(trunk: PreTrainedModel, line: Line, places: Tensor) -> Tensor:
    """Hidden states [n, D], in fp32, at some places [n] of a line; none of them lies in its shared beginning."""
    kind = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32
    with torch.autocast("cpu", enabled=False):
        return _Reader(trunk, line, places, kind).read()


class _Reader:
    """One line. At the end of its tokens, and of the places, stands at least one that fills up and nobody reads."""

    def __init__(self, trunk: PreTrainedModel, line: Line, places: Tensor, kind: torch.dtype):
        config: Any = trunk.config
        self.trunk: Any = trunk
        self.line, self.places, self.kind = line, places, kind
        self.floor = config.rms_norm_eps
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        self.size: int = self.trunk.layers[0].self_attn.head_dim
        self.order = neighbours(self.heads, self.size)

    def read(self) -> Tensor:
        count = padded(len(self.line.tokens) + 1)
        tokens, positions = (nn.functional.pad(x, (0, count - len(x))) for x in (self.line.tokens, self.line.positions))
        hidden = self.trunk.embed_tokens(tokens)
        cosine, sine = self.trunk.rotary_emb(hidden, positions[None])
        half = self.size // 2
        angles = torch.complex(cosine[0, :, None, :half], sine[0, :, None, :half])
        *layers, last = self.trunk.layers
        blocks = self._blocks(count)
        for layer in layers:
            hidden = self._layer(layer, hidden, angles, blocks)
        hidden = self._layer(last, hidden, angles, [self._asked(count)], self.places)
        return kernels.norm(hidden, self.trunk.norm.weight, self.floor, torch.float32)[: len(self.places)]

    def _layer(
        self, layer: Any, hidden: Tensor, angles: Tensor, blocks: Sequence[Block], places: Tensor | None = None
    ) -> Tensor:
        """[N, D] of [N, D]; with `places` only what comes out there, filled up."""
        attention, perceptron = layer.self_attn, layer.mlp
        given = self._norm(hidden, layer.input_layernorm)
        order = self.order[: self.groups * self.size]  # of keys, and then of values, which stay as they come
        order = torch.cat([order, torch.arange(len(order), 2 * len(order))])
        memory = self._product(given, [attention.k_proj, attention.v_proj], order).unflatten(1, (2, -1, self.size))
        keys = self._rotated(memory[:, 0], angles, getattr(attention, "k_norm", None))
        if places is not None:
            given, hidden, angles = (_at(x, places) for x in (given, hidden, angles))
        queries = self._product(given, [attention.q_proj], self.order).unflatten(1, (-1, self.size))
        queries = self._rotated(queries, angles, getattr(attention, "q_norm", None))
        found = kernels.attention(queries, keys, memory[:, 1], blocks)
        hidden = hidden + self._product(found, [attention.o_proj])
        given = self._norm(hidden, layer.post_attention_layernorm)
        both = self._product(given, [perceptron.gate_proj, perceptron.up_proj])
        return hidden + self._product(kernels.gated(both), [perceptron.down_proj])

    def _norm(self, hidden: Tensor, norm: Any) -> Tensor:
        return kernels.norm(hidden, norm.weight, self.floor, self.kind)

    def _product(self, given: Tensor, layers: Sequence[nn.Linear], order: Tensor | None = None) -> Tensor:
        return kernels.product(given, _pack(layers, self.kind, order))

    def _rotated(self, vectors: Tensor, angles: Tensor, norm: Any) -> Tensor:
        """Vectors [N, heads, d], normed if they are to be, turned."""
        if norm is not None:
            pairs = self.order[: self.size]
            vectors = kernels.norm(vectors.float(), norm.weight[pairs], self.floor, torch.float32)
        return kernels.rotated(vectors, angles)

    def _blocks(self, count: int) -> list[Block]:
        """The shared beginning by itself, then the rows behind it."""
        shared, tokens = self.line.shared, self._rows(count)
        seen = torch.arange(shared + tokens.shape[1]) <= shared + torch.arange(tokens.shape[1])[:, None]
        rest = self._block(tokens, tokens, seen)
        if not shared:
            return [rest]
        first = torch.arange(shared)
        return [self._block(first[None], tokens.new_empty((1, 0)), first <= first[:, None]), rest]

    def _asked(self, count: int) -> Block:
        """The rows, and of their queries those at the places that are asked about."""
        shared, tokens = self.line.shared, self._rows(count)
        stops = torch.cumsum(self.line.lengths, 0)
        rows = torch.searchsorted(stops, self.places - shared, right=True)
        order = torch.argsort(rows, stable=True)
        counts = torch.bincount(rows, minlength=len(stops))
        width = -(-int(counts.max()) // _WIDTH) * _WIDTH
        columns = torch.arange(width)
        used = columns < counts[:, None]
        queries = torch.full(used.shape, padded(len(rows) + 1) - 1).masked_scatter_(used, order)
        ahead = torch.zeros(used.shape, dtype=torch.long).masked_scatter_(used, self.line.positions[self.places[order]])
        seen = torch.arange(shared + tokens.shape[1]) <= ahead[:, :, None]
        return self._block(queries, tokens, seen)

    def _rows(self, count: int) -> Tensor:
        """[b, W] the tokens of the rows behind the shared beginning, filled up by the last of all."""
        lengths = self.line.lengths
        columns = torch.arange(-(-int(lengths.max()) // _WIDTH) * _WIDTH)
        starts = self.line.shared + torch.cumsum(lengths, 0) - lengths
        return torch.where(columns < lengths[:, None], starts[:, None] + columns, count - 1)

    def _block(self, queries: Tensor, tokens: Tensor, seen: Tensor) -> Block:
        return kernels.block(queries, tokens, self.line.shared, seen, self.heads, self.groups)


def _pack(layers: Sequence[nn.Linear], kind: torch.dtype, order: Tensor | None) -> Packed:
    """The layers' weights as one."""
    biases = [layer.bias for layer in layers if layer.bias is not None]
    parameters = [*(layer.weight for layer in layers), *biases]
    with torch.no_grad():
        weight = torch.cat([layer.weight.to(kind) for layer in layers])
        bias = torch.cat([bias.to(kind) for bias in biases]) if biases else None
        if order is not None:
            weight, bias = weight[order], None if bias is None else bias[order]
    return Packed(weight, bias, parameters, order)


def _at(given: Tensor, places: Tensor) -> Tensor:
    """[m, ...] of [N, ...]: at the places, filled up with zeros."""
    missing = padded(len(places) + 1) - len(places)
    return torch.cat([given[places], given.new_zeros((missing, *given.shape[1:]))])
