"""Lanes share out work, and nothing that comes of it depends on who was first."""

import threading
import time

import pytest
import torch

from turnwise.lanes import Lanes


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("items", [0, 1, 2, 7])
def test_results_come_in_the_order_of_the_items(count, items):
    def work(item: int) -> int:
        time.sleep(0.01 * (item % 3 == 0))
        return item * item

    assert Lanes(count).map(work, range(items)) == [item * item for item in range(items)]


def test_each_lane_is_a_thread_with_one_core_and_the_callers_keeps_all():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        begun = threading.Barrier(2)
        found = Lanes(2).map(lambda _: (begun.wait(), threading.get_ident(), torch.get_num_threads()), range(8))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert len({thread for _, thread, _ in found}) == 2
    assert {cores for *_, cores in found} == {1}


def test_one_lane_is_the_callers_own_thread():
    assert set(Lanes(1).map(lambda _: threading.get_ident(), range(3))) == {threading.get_ident()}


@pytest.mark.parametrize("count", [1, 2])
def test_who_does_not_learn_does_not_in_a_lane(count):
    def work(item: int) -> bool:
        return torch.is_grad_enabled()

    assert all(Lanes(count).map(work, range(4)))
    with torch.no_grad():
        assert not any(Lanes(count).map(work, range(4)))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_what_goes_wrong_in_a_lane_goes_wrong_in_the_caller(count):
    with pytest.raises(ZeroDivisionError):
        Lanes(count).map(lambda item: 1 // (item - 2), range(5))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_gradients_of_all_items_meet(count):
    weight, idle = torch.ones(4, requires_grad=True), torch.ones(2, requires_grad=True)
    weight.grad = torch.full((4,), 100.0)

    def work(item: int) -> tuple[torch.Tensor, int]:
        return (item * weight**2).sum(), item

    assert Lanes(count).backward(work, range(5), [weight, idle]) == [0, 1, 2, 3, 4]
    assert weight.grad.tolist() == [120.0] * 4
    assert idle.grad is None


def test_the_sum_is_the_same_whoever_comes_first():
    """Numbers whose sum depends on its order, and lanes that are slow in turn."""

    def gradient(slow: int) -> torch.Tensor:
        weight = torch.ones(1, requires_grad=True)

        def work(item: int) -> tuple[torch.Tensor, None]:
            time.sleep(0.01 * (item % 2 == slow))
            return (weight * 3.0 ** (item - 8)).sum() * (-1) ** item, None

        Lanes(2).backward(work, range(16), [weight])
        assert weight.grad is not None
        return weight.grad

    assert torch.equal(gradient(0), gradient(1))
