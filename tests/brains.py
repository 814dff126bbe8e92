"""What stands in for a model behind a server: without torch, since a process of its own starts with it."""

from collections.abc import Callable, Sequence

from turnwise.seeds import derive

STOP = 7
Brain = Callable[[Sequence[int], float], tuple[int, float]]  # all ids so far, and the weights: a token, its log-prob


def hashed(ids: Sequence[int], weight: float) -> tuple[int, float]:
    """Every token depends on all before it, and on the weights."""
    token = derive("token", *map(str, ids), f"{weight:g}") % 60
    return token, -token / 100 - 0.01


def expected(prompt: Sequence[int], most: int, weight: float = 0.0) -> tuple[int, ...]:
    """The whole reply to a prompt."""
    ids = list(prompt)
    while len(ids) < len(prompt) + most and (len(ids) == len(prompt) or ids[-1] != STOP):
        ids.append(hashed(ids, weight)[0])
    return tuple(ids[len(prompt) :])
