"""A pass that is recorded once as a CUDA graph, and replayed with other tokens.

A token of a large model is a thousand launches of kernels, which take longer than what is launched.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor


class Replay:
    """One token more for each of R rows. What it reads and writes besides must stay where it is."""

    def __init__(
        self,
        compute: Callable[[Tensor, Tensor], Tensor],
        ids: Sequence[int],
        positions: Sequence[int],
        device: torch.device,
    ):
        """`compute` takes ids and positions [R], and may not look at numbers. It runs with these ones, [R] each."""
        self._given = torch.tensor([ids, positions], device=device)
        self._run, self._found = record(partial(compute, *self._given), device)

    def __call__(self, ids: Sequence[int], positions: Sequence[int]) -> Tensor:
        """What `compute` returns for these; the next call overwrites it."""
        self._given.copy_(torch.tensor([ids, positions]))
        self._run()
        return self._found


def record(compute: Callable[[], Tensor], device: torch.device) -> tuple[Callable[[], None], Tensor]:
    """What computes it again, and where it leaves what it finds."""
    with torch.cuda.device(device):
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            compute()  # at first libraries set themselves up, which cannot be recorded
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # What other threads do meanwhile, such as a reward's own model, is no part of it.
        with torch.cuda.graph(graph, stream=aside, capture_error_mode="thread_local"):
            found = compute()
    return graph.replay, found
