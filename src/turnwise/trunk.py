"""Reads a decoder of transformers only where somebody looks. Exact: what is left out influences nothing seen."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

_COUNT = 64  # a processor prepares every new shape of a product anew, so only few are let occur
_WORTH_SHARING = 16  # tokens; a shorter common beginning costs more to read apart than it saves

Places = tuple[Tensor, Tensor]  # rows and columns, [n] each


def read(trunk: PreTrainedModel, tokens: Tensor, places: Places, shared: int = 0) -> Tensor:
    """Hidden states [n, D] at some places of rows of tokens [b, T], padded on the right.

    All rows begin with the same `shared` tokens, such as instructions, and no place lies there: they are read once,
    and the gradients of all rows meet in them.
    """
    if trunk.is_activation_checkpointing:  # it runs layers again later, without caches and hooks
        return trunk(input_ids=tokens, use_cache=False).last_hidden_state[places]
    cache = DynamicCache(config=trunk.config)
    if shared < _WORTH_SHARING or any(type(layer) is not DynamicLayer for layer in cache.layers):
        with last_mlp_at(trunk, places):
            return trunk(input_ids=tokens, use_cache=False).last_hidden_state[places]
    trunk(input_ids=tokens[:1, :shared], past_key_values=cache, use_cache=True)
    for layer in cache.layers:
        layer.keys, layer.values = (kept.expand(len(tokens), -1, -1, -1) for kept in (layer.keys, layer.values))
    places = places[0], places[1] - shared
    with last_mlp_at(trunk, places):
        return trunk(input_ids=tokens[:, shared:], past_key_values=cache, use_cache=True).last_hidden_state[places]


@contextmanager
def last_mlp_at(trunk: nn.Module, places: Places) -> Iterator[None]:
    """Run the last layer's perceptron at some places alone; elsewhere the hidden states are then meaningless."""
    layers = getattr(trunk, "layers", None)
    if not isinstance(layers, nn.ModuleList) or not isinstance(getattr(layers[-1], "mlp", None), nn.Module):
        yield  # an architecture with other names is read whole
        return
    whole: list[Tensor] = []

    def gather(_: nn.Module, given: tuple[Tensor, ...]) -> Tensor:
        whole.append(given[0])
        return nn.functional.pad(given[0][places], (0, 0, 0, -len(places[0]) % _COUNT))

    def scatter(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return torch.zeros_like(whole.pop(), dtype=output.dtype).index_put(places, output[: len(places[0])])

    hooks = (layers[-1].mlp.register_forward_pre_hook(gather), layers[-1].mlp.register_forward_hook(scatter))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
