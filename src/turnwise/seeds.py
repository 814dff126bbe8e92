"""Every random number of a run is a function of its seed and of what it is for.

So nothing random has a state that must survive a crash, and no two purposes share numbers.
"""

import hashlib
from typing import Literal

Split = Literal["train", "eval", "demo"]
_SPLITS: tuple[Split, ...] = ("train", "eval", "demo")


def derive(*parts: int | str) -> int:
    """A 62-bit number from the parts; the same in every process and on every machine."""
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 2


def episode_seed(split: Split, *parts: int | str) -> int:
    """The seed of one episode. Seeds of different splits differ modulo the number of splits: they never meet."""
    return derive(split, *parts) // len(_SPLITS) * len(_SPLITS) + _SPLITS.index(split)
