"""The rows of the cache hold what their requests have read, whoever came and went."""

from collections.abc import Sequence
from itertools import takewhile

import torch
from hypothesis import given
from hypothesis import strategies as st

from turnwise.engines.cache import Cache

PROMPTS = st.lists(st.integers(1, 3), min_size=1, max_size=8)  # which begin alike often


@given(st.lists(st.tuples(PROMPTS, st.lists(st.integers(0, 3), max_size=3)), min_size=1, max_size=12))
def test_whoever_comes_and_goes_a_row_holds_its_own_tokens(visits):
    cache = Cache(torch.device("cpu"))
    busy: list[list[int]] = []  # what the busy rows must hold
    seen: list[list[int]] = []
    for prompt, leaving in visits:
        known = max((common(prompt[:-1], one) for one in seen), default=0)
        cache.reserve(len(busy) + 1, len(prompt))
        rest = cache.admit(prompt)
        assert rest == prompt[len(prompt) - len(rest) :]
        assert len(rest) >= len(prompt) - known  # nobody knows more than was ever read
        busy.append(prompt)
        seen.append(prompt)
        read(cache, len(busy) - 1, rest)
        for row in leaving:
            if row < len(busy):
                busy[row] = busy[-1]
                busy.pop()
                cache.release(row)
        check(cache, busy)


def test_a_row_that_rests_is_gone_on_from_or_else_given_up_last():
    cache = Cache(torch.device("cpu"))
    for prompt in ([1, 1, 1], [2, 2, 2], [3, 3, 3]):
        cache.reserve(3, 3)
        read(cache, cache.busy, cache.admit(prompt))
    cache.release(1)
    cache.release(0)
    assert list(cache.admit([1, 1, 1, 4])) == [4]
    cache.release(cache.busy - 1)
    assert list(cache.admit([4, 4])) == [4, 4]  # in place of the row that rests longest
    assert list(cache.admit([2, 2, 2, 4])) == [2, 2, 2, 4]


def read(cache: Cache, row: int, tokens: Sequence[int]) -> None:
    """As a model whose only keys and values are the tokens themselves."""
    ids, _ = cache.extend(row, [tokens])
    cache.keep(ids.float()[:, None, None, None].expand(-1, 2, 1, 1), 0)


def check(cache: Cache, rows: list[list[int]]) -> None:
    assert cache.busy == len(rows)
    for part in cache.tensors(0, 1, torch.zeros(1, 2, 1, 1)):
        for row, held in zip(cache._rows, rows, strict=False):
            assert part[row.number, 0, : len(held), 0].tolist() == held


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    return sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(one, other, strict=False)))
