"""The decoders of transformers whose layers we compute ourselves: Llama, Mistral, Qwen2 and Qwen3."""

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

FAMILY = ("llama", "mistral", "qwen2", "qwen3")
_STEADY = ("default", "linear", "llama3", "yarn")  # rotary positions whose angles do not depend on the length


def in_family(trunk: PreTrainedModel) -> bool:
    """Whether it is one of them, with weights in fp32, in plain linear layers or in those of peft."""
    config: Any = trunk.config
    if config.model_type not in FAMILY:
        return False
    parts: Any = trunk
    rotary, size = parts.rotary_emb, parts.layers[0].self_attn.head_dim
    products: list[Any] = [part for name, part in trunk.named_modules() if name.endswith("_proj")]
    products = [part.get_base_layer() if is_adapted(part) else part for part in products]
    plain = all(type(part) is nn.Linear and part.weight.dtype == torch.float32 for part in products)
    whole = 2 * len(rotary.inv_freq) == size and rotary.rope_type in _STEADY
    return plain and whole and config.hidden_act == "silu"


def is_adapted(part: nn.Module) -> bool:
    """Whether it is a linear layer of peft's, to whose weight those of low-rank adapters can be added."""
    return hasattr(part, "get_delta_weight")
