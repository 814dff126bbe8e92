"""Lines of a batch side by side: on a processor each core reads lines of its own.

An operation of a small model is too short to be shared out to cores; whole lines are not. Who does what is fixed
beforehand, and sums are taken in that order, so that the same seed gives the same run.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
R = TypeVar("R")


class Lanes:
    """`count` threads with one core each; a single lane is the caller's own thread, which uses all cores."""

    def __init__(self, count: int):
        self.count = count
        self._threads: ThreadPoolExecutor | None = None

    def map(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """The results in the order of the items."""
        results: list[Any] = [None] * len(items)

        def run(mine: Sequence[int]) -> None:
            for number in mine:
                results[number] = work(items[number])

        self._run(run, len(items))
        return results

    def backward(
        self, work: Callable[[T], tuple[Tensor, R]], items: Sequence[T], parameters: Sequence[Tensor]
    ) -> list[R]:
        """Add the gradients of the losses that `work` returns to `grad`; the rest in the order of the items."""
        results: list[Any] = [None] * len(items)

        def alone(mine: Sequence[int]) -> None:
            for number in mine:
                loss, results[number] = work(items[number])
                loss.backward()

        def beside(mine: Sequence[int]) -> list[Tensor | None]:
            """Gradients of its own, as a sum in the parameters would depend on who comes first."""
            total: list[Tensor | None] = [None] * len(parameters)
            for number in mine:
                loss, results[number] = work(items[number])
                found = torch.autograd.grad(loss, parameters, allow_unused=True)
                total = [_sum(one, other) for one, other in zip(total, found, strict=True)]
            return total

        if self.count == 1:
            alone(range(len(items)))
            return results
        for total in self._run(beside, len(items)):
            for parameter, found in zip(parameters, total, strict=True):
                parameter.grad = _sum(parameter.grad, found)
        return results

    def _run(self, work: Callable[[Sequence[int]], R], items: int) -> list[R]:
        """Deal the items out."""
        if self.count == 1:
            return [work(range(items))]
        hands = [range(lane, items, self.count) for lane in range(self.count)]
        learning = torch.is_grad_enabled()

        def in_lane(mine: Sequence[int]) -> R:
            with torch.set_grad_enabled(learning):
                return work(mine)

        if self._threads is None:
            cores, begun = torch.get_num_threads(), Barrier(self.count)
            self._threads = ThreadPoolExecutor(self.count, initializer=_keep_to_one_core)
            list(self._threads.map(lambda _: begun.wait(), range(self.count)))
            torch.set_num_threads(cores)  # of this thread, and of those to come
        return list(self._threads.map(in_lane, hands))


def _keep_to_one_core() -> None:
    torch.get_num_threads()  # whoever has not asked yet takes, when first at work, the number that others set last
    torch.set_num_threads(1)


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return one.add_(other)
