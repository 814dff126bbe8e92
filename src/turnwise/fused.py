"""Reads a line by the kernels: what transformers' modules compute, to rounding, in fewer and shorter operations.

The last layer computes all behind its attention only where somebody looks, on a processor also queries. There the
first layer computes what comes before attention once for each word, and attention is in blocks. A GPU has kernels for
these as they are.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from turnwise import flash, kernels
from turnwise.attention import Layout, locate, pieces
from turnwise.family import in_family, is_adapted
from turnwise.kernels import WIDTH, Adapter, Block, Packed, View, padded
from turnwise.lines import Line

# Attention is cut where fewer operations are worth more than what they do in vain
_PIECE = 32  # queries at least that look at keys together
_PIECES = 16  # of the longest row, at most
_WORTH = 0.9  # of the columns, or less, that two blocks of pieces look at for one


def can_read(trunk: PreTrainedModel) -> bool:
    """Whether it is one of those whose layers we know, on a processor or on a GPU with flash attention."""
    if not in_family(trunk):
        return False
    parts: Any = trunk
    query = torch.empty(0, parts.layers[0].self_attn.head_dim, device=trunk.device, dtype=_dtype(trunk.device.type))
    return trunk.device.type == "cpu" or flash.takes(query)


def _dtype(device: str) -> torch.dtype:
    """The precision of matrix products."""
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else torch.float32


@dataclass(frozen=True)
class _Linear:
    """A linear layer, and the adapter in use."""

    weight: nn.Parameter  # [out, in]
    bias: nn.Parameter | None  # [out]
    low: nn.Parameter | None = None  # [r, in]
    high: nn.Parameter | None = None  # [out, r]
    scale: float = 0.0


@dataclass(frozen=True)
class _Layer:
    """What a layer computes with: known before its activations are computed anew, when other adapters are in use."""

    norms: Sequence[Any]  # before attention and before the MLP
    head_norms: Sequence[Any]  # of queries and keys, or None each
    query: _Linear
    memory: Sequence[_Linear]  # keys and values
    out: _Linear
    gate_up: Sequence[_Linear]
    down: _Linear


class Reader:
    """Of a decoder, while its weights and the adapter in use stay as they are."""

    def __init__(self, trunk: PreTrainedModel, keep: bool):
        """`keep` what layers are packed into, from line to line, which takes as much memory as the weights."""
        self.trunk: Any = trunk
        self.device = trunk.device.type
        self.dtype = _dtype(self.device)
        self.layers = [*map(_resolve, self.trunk.layers)]
        self.twice = any(getattr(layer, "gradient_checkpointing", False) for layer in self.trunk.layers)
        self._kept: dict[tuple[int, ...], Packed] | None = {} if keep else None

    def __call__(self, line: Line, places: Tensor) -> Tensor:
        """Hidden states [n, D], in fp32, at some places [n] of a line."""
        with torch.autocast(self.device, enabled=False):
            return (_OnProcessor if self.device == "cpu" else _OnGPU)(self, line, places).read()

    def pack(self, layers: Sequence[_Linear]) -> Packed:
        if self._kept is None:
            return _pack(layers, self.dtype)
        key = tuple(id(layer.weight) for layer in layers)
        if key not in self._kept:
            self._kept[key] = _pack(layers, self.dtype)
        return self._kept[key]


class _Reading(ABC):
    """One line."""

    def __init__(self, reader: Reader, line: Line, places: Tensor):
        config: Any = reader.trunk.config
        self.reader, self.trunk, self.dtype = reader, reader.trunk, reader.dtype
        self.line, self.places = line, places
        self.eps = config.rms_norm_eps
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        self.size: int = self.trunk.layers[0].self_attn.head_dim
        self.count = padded(len(line.tokens))

    def read(self) -> Tensor:
        missing = self.count - len(self.line.tokens)
        tokens, positions = (nn.functional.pad(x, (0, missing)) for x in (self.line.tokens, self.line.positions))
        words, of_words = self.words(tokens)
        hidden = self.trunk.embed_tokens(words)
        cosine, sine = (x[0, :, None, : self.size // 2] for x in self.trunk.rotary_emb(hidden, positions[None]))
        *layers, last = self.reader.layers
        self.prepare(cosine, sine)
        added: Tensor | None = None
        for layer in layers:
            if self.reader.twice and torch.is_grad_enabled():
                options: Any = {"use_reentrant": False, "preserve_rng_state": False}
                both = checkpoint(self._layer, layer, hidden, None, None, of_words, **options)
                hidden = torch.add(*both)  # since what a layer is given is kept
            else:
                hidden, added = self._layer(layer, hidden, added, None, of_words)
            of_words = None
        hidden, added = self._layer(last, hidden, added, self.places, of_words)
        _, found = kernels.add_rms_norm(hidden, added, self.trunk.norm.weight, self.eps, torch.float32)
        return found[: len(self.places)]

    @abstractmethod
    def words(self, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        """Those of N tokens, once each, filled up, and which of them each token is [N]; or the tokens as they come."""

    @abstractmethod
    def prepare(self, cosine: Tensor, sine: Tensor) -> None:
        """Work out what all layers need; the angles are [N, 1, d / 2]."""

    @abstractmethod
    def attend(
        self, layer: _Layer, given: Tensor, hidden: Tensor, places: Tensor | None, of_words: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """What attention finds [N, H x d] in normed hidden states [N, D], and what these were before the norm [N, D].

        Or both at the places alone, filled up. With `of_words` [N] the hidden states are those of words.
        """

    def _layer(
        self, layer: _Layer, hidden: Tensor, added: Tensor | None, places: Tensor | None, of_words: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Hidden states [N, D], or those of words, and what is still to be added to them, likewise after the layer.

        With `places` only what comes out there, filled up.
        """
        hidden, given = self._add_rms_norm(hidden, added, layer.norms[0])
        found, hidden = self.attend(layer, given, hidden, places, of_words)
        hidden, given = self._add_rms_norm(hidden, self._linear_of(found, [layer.out]), layer.norms[1])
        both = self._linear_of(given, layer.gate_up)
        return hidden, kernels.swiglu_linear(both, self.reader.pack([layer.down]))

    def _rms_norm(self, given: Tensor, norm: Any, dtype: torch.dtype) -> Tensor:
        return kernels.rms_norm(given, norm.weight, self.eps, dtype)

    def _add_rms_norm(self, hidden: Tensor, added: Tensor | None, norm: Any) -> tuple[Tensor, Tensor]:
        return kernels.add_rms_norm(hidden, added, norm.weight, self.eps, self.dtype)

    def _linear_of(self, given: Tensor, layers: Sequence[_Linear]) -> Tensor:
        return kernels.linear(given, self.reader.pack(layers))


class _OnGPU(_Reading):
    def words(self, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        return tokens, None  # whose number need not be waited for

    def prepare(self, cosine: Tensor, sine: Tensor) -> None:
        self.angles = cosine.contiguous(), sine.contiguous()
        self.rows = Layout(self.line, self.count).in_turn

    def attend(
        self, layer: _Layer, given: Tensor, hidden: Tensor, places: Tensor | None, of_words: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        heads = self._linear_of(given, [layer.query, *layer.memory]).unflatten(1, (-1, self.size))
        if layer.head_norms[0] is not None:
            *both, values = heads.split((self.heads, self.groups, self.groups), 1)
            normed = [
                self._rms_norm(x.float(), norm, self.dtype) for x, norm in zip(both, layer.head_norms, strict=True)
            ]
            heads = torch.cat([*normed, values], 1)
        rotated = kernels.rotary(heads, *self.angles, self.groups)
        queries, memory = rotated.split((self.heads, 2 * self.groups), 1)
        found = self.rows.attend_flat(queries, memory, None).flatten(1)
        return (found, hidden) if places is None else (_at(found, places), _at(hidden, places))


class _OnProcessor(_Reading):
    def words(self, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        if len(self.reader.layers) == 1:
            return tokens, None  # the last layer is asked about places
        words, of_words = tokens.unique(return_inverse=True)
        return nn.functional.pad(words, (0, padded(len(words)) - len(words))), of_words

    def prepare(self, cosine: Tensor, sine: Tensor) -> None:
        self.angles = torch.cat([cosine, sine], -1)[:, 0]
        self.angles_of_queries = self.angles * self.size**-0.5  # by which scores are to be divided
        self.blocks = self._blocks()

    def attend(
        self, layer: _Layer, given: Tensor, hidden: Tensor, places: Tensor | None, of_words: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        of_queries, of_keys = layer.head_norms
        memory = self._linear_of(given, layer.memory).unflatten(1, (2 * self.groups, self.size))
        if of_keys is not None:
            keys, values = memory.chunk(2, 1)
            memory = torch.cat([self._rms_norm(keys.float(), of_keys, self.dtype), values], 1)
        angles, blocks = self.angles_of_queries, self.blocks
        if places is not None:
            given, hidden, angles, blocks = _at(given, places), _at(hidden, places), _at(angles, places), self._asked()
        queries = self._linear_of(given, [layer.query]).unflatten(1, (self.heads, self.size))
        if of_queries is not None:
            queries = self._rms_norm(queries.float(), of_queries, self.dtype)
        hidden = hidden if of_words is None else hidden.index_select(0, of_words)
        return kernels.attention(queries, memory, View(blocks, angles, self.angles, of_words)), hidden

    def _blocks(self) -> list[Block]:
        """The rows in pieces, whose queries need not look as far as the row goes; those that look as far together."""
        width = padded(max(_PIECE, int(self.line.lengths.max()) // _PIECES), WIDTH)
        rows, reach, last = pieces(self.line.own, self.line.lengths, width)
        return self._parted(locate(self.line, rows, last, reach, -1), last, rows, reach)

    def _asked(self) -> list[Block]:
        """Of the queries those at the places that are asked about, in pieces too."""
        stops, order = torch.cumsum(self.line.own, 0), torch.argsort(self.places)
        counts = torch.bincount(torch.searchsorted(stops, self.places, right=True), minlength=len(stops))
        most = int(counts.max())
        rows, ends, numbers = pieces(counts, counts, padded(min(most, max(_PIECE, most // _PIECES)), WIDTH))
        used = numbers < ends[:, None]
        asked = order[torch.where(used, (torch.cumsum(counts, 0) - counts)[rows, None] + numbers, 0)]
        last = torch.where(used, self.line.positions[self.places[asked]], 0)
        return self._parted(torch.where(used, asked, -1), last, rows, 1 + last.amax(1))

    def _parted(self, queries: Tensor, last: Tensor, rows: Tensor, reach: Tensor) -> list[Block]:
        """In two blocks, cut where the fewest columns are looked at in vain; or in one, where that saves little."""
        order, near = torch.argsort(reach, stable=True), torch.arange(1, len(reach) + 1)
        far = reach[order]
        columns = near * far + (len(near) - near) * far[-1]
        cut = 1 + int(columns.argmin())
        parts = [order[:cut], order[cut:]] if columns[cut - 1] < _WORTH * columns[-1] else [order]
        return [self._block(queries[part], last[part], rows[part], reach[part]) for part in parts]

    def _block(self, queries: Tensor, last: Tensor, rows: Tensor, reach: Tensor) -> Block:
        keys = locate(self.line, rows, torch.arange(padded(int(reach.max()), WIDTH)), reach, -1)
        return kernels.block(queries, last, keys)


def _resolve(layer: Any) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    return _Layer(
        norms=[layer.input_layernorm, layer.post_attention_layernorm],
        head_norms=[getattr(attention, name, None) for name in ("q_norm", "k_norm")],
        query=_linear(attention.q_proj),
        memory=[_linear(attention.k_proj), _linear(attention.v_proj)],
        out=_linear(attention.o_proj),
        gate_up=[_linear(mlp.gate_proj), _linear(mlp.up_proj)],
        down=_linear(mlp.down_proj),
    )


def _linear(part: Any) -> _Linear:
    if not is_adapted(part):
        return _Linear(part.weight, part.bias)
    base, (name,) = part.get_base_layer(), part.active_adapters
    if part.disable_adapters:
        return _Linear(base.weight, base.bias)
    return _Linear(base.weight, base.bias, part.lora_A[name].weight, part.lora_B[name].weight, part.scaling[name])


def _pack(layers: Sequence[_Linear], dtype: torch.dtype) -> Packed:
    """The layers' weights as one, with their adapters added."""
    biases = [layer.bias for layer in layers if layer.bias is not None]
    parameters = [*(layer.weight for layer in layers), *biases]
    sizes = [len(layer.weight) for layer in layers]
    adapters = _adapters(layers)
    with torch.no_grad():
        weight = layers[0].weight.new_empty((sum(sizes), layers[0].weight.shape[1]), dtype=dtype)
        for part, layer in zip(weight.split(sizes), layers, strict=True):
            part.copy_(_adapted(layer))
        bias = torch.cat([bias.to(dtype) for bias in biases]) if biases else None
        low = high = None
        if adapters:
            low = torch.cat([one.low.to(dtype) for one in adapters])
            high = weight.new_zeros((len(weight), len(low)))
            for one in adapters:
                high[one.rows, one.ranks] = one.high * one.scale
    return Packed(weight, bias, parameters, adapters, low, high)


def _adapted(layer: _Linear) -> Tensor:
    """[out, in] in fp32, since what an adapter adds may be less than the last digit of a weight in bf16."""
    if layer.low is None or layer.high is None:
        return layer.weight
    return torch.addmm(layer.weight, layer.high, layer.low, alpha=layer.scale)


def _adapters(layers: Sequence[_Linear]) -> list[Adapter]:
    """Those in use, and where in the packed layers they are."""
    found: list[Adapter] = []
    row = rank = 0
    for layer in layers:
        rows = slice(row, row + len(layer.weight))
        row = rows.stop
        if layer.low is not None and layer.high is not None:
            ranks = slice(rank, rank + len(layer.low))
            rank = ranks.stop
            found.append(Adapter(layer.low, layer.high, layer.scale, rows, ranks))
    return found


def _at(given: Tensor, places: Tensor) -> Tensor:
    """[m, ...] of [N, ...]: at the places, filled up with zeros."""
    missing = padded(len(places)) - len(places)
    return torch.cat([given[places], given.new_zeros((missing, *given.shape[1:]))])
