"""PyTorch's flash attention over rows of different lengths that lie behind one another, as each release offers it."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from turnwise.sending import sent

try:
    from torch.nn.attention import varlen
except ImportError:  # before 2.10
    varlen: Any = None

_OPTIONS = frozenset(inspect.signature(varlen.varlen_attn).parameters if varlen else ())
_HALF = (torch.bfloat16, torch.float16)


def takes(query: Tensor) -> bool:
    """Whether it can be asked for attention of such queries [..., d]. That of 2.10 takes no scale, and is not asked."""
    size = query.shape[-1]
    # AMD's kernels are left out: of rows with fewer queries than keys they need not mean the same by causal.
    able = query.is_cuda and torch.version.hip is None and torch.cuda.get_device_capability(query.device) >= (8, 0)
    return able and "window_size" in _OPTIONS and _arithmetic(query) in _HALF and size % 8 == 0 and size <= 256


class Cuts:
    """Where rows of queries, and of the keys that they look at, begin and end.

    The last query of a row sees all of its keys, and each one before it a key less.
    """

    def __init__(self, queries: Tensor, keys: Tensor, device: torch.device):
        """Of the lengths [b] of each."""
        cuts = (nn.functional.pad(torch.cumsum(lengths, 0), (1, 0)) for lengths in (queries, keys))
        self._cuts = [sent(cut.to(torch.int32), device) for cut in cuts]  # [b + 1] each
        self._longest = int(queries.max()), int(keys.max())

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """[N, heads, d] of queries [N, heads, d], and of keys and values [K, groups, d]."""
        query, key, value = (x.to(_arithmetic(x)) for x in (query, key, value))
        options: dict[str, Any] = {"scale": scale, "window_size": (-1, 0)}  # all before a token, and none behind it
        if "enable_gqa" in _OPTIONS:  # before 2.12 nobody counts the heads
            options["enable_gqa"] = True
        return varlen.varlen_attn(query, key, value, *self._cuts, *self._longest, **options)


def _arithmetic(x: Tensor) -> torch.dtype:
    """The precision of products with it: under autocast, rotary positions leave queries and keys in fp32."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
