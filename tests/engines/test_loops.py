"""Both ways of attention find what the formula says, and keep what it was made of."""

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from turnwise.engines import attention
from turnwise.engines.attention import attention_of
from turnwise.engines.cache import Cache

needs_loops = pytest.mark.skipif(
    not attention.has_threads(), reason="no numba, or no threads that PyTorch shares with it"
)
FAR = 1e30  # stands in all columns behind a row's own


def formula(parts: Tensor, begun: Tensor, counts: list[int], groups: int) -> Tensor:
    """[N, heads x d] in fp64, of what rows have begun with [2, R, groups, C, d] and go on with."""
    heads, found = parts.shape[1] - 2 * groups, []
    for row, new in enumerate(parts.double().split(counts)):
        known = begun[:, row].double().permute(2, 0, 1, 3)  # [C, 2, groups, d]
        every = torch.cat([known, new[:, heads:].unflatten(1, (2, groups))])
        for place, query in enumerate(new[:, :heads], len(known) + 1):
            keys, values = every[:place].repeat_interleave(heads // groups, 2).unbind(1)
            weights = (torch.einsum("hd,chd->hc", query, keys) / parts.shape[2] ** 0.5).softmax(1)
            found.append(torch.einsum("hc,chd->hd", weights, values).flatten())
    return torch.stack(found)


@pytest.mark.parametrize("loops", [pytest.param(True, marks=needs_loops), False])
@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(1, 12), min_size=1, max_size=9),
    known=st.integers(0, 70),
    groups=st.integers(1, 3),
    repeat=st.integers(1, 3),
    size=st.sampled_from([2, 6, 32]),
    sharp=st.sampled_from([0.0, 1.0, 100.0]),
    seed=st.integers(0, 99),
)
def test_it_is_what_the_formula_says(loops, counts, known, groups, repeat, size, sharp, seed):
    """However many tokens of however many rows are new, and however far scores lie apart."""
    random = torch.Generator().manual_seed(seed)
    rows, first = len(counts), 2
    parts = torch.randn(sum(counts), (repeat + 2) * groups, size, generator=random)
    parts[:, : repeat * groups] *= sharp
    begun = torch.randn(2, rows, groups, known, size, generator=random)
    kept = Cache(torch.device("cpu"))
    for _ in range(first + rows):
        kept.admit([0])
    for row in range(first, first + rows):
        kept._rows[row].held = [0] * known
    _, positions = kept.extend(first, [[0] * count for count in counts])
    both = kept.tensors(0, groups, parts)
    for held, start in zip(both, begun, strict=True):
        held.fill_(FAR)[first : first + rows, :, :known] = start
    ends = torch.tensor(counts).cumsum(0) - 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "has_threads", lambda: loops)
        attend = attention_of(positions, counts, groups, kept, bf16=True)
    found, last = attend(parts, 0, None), attend(parts, 0, ends)
    expected = formula(parts, begun, counts, groups)
    close = {"atol": 2e-6 * max(1.0, sharp), "rtol": 1e-4}
    torch.testing.assert_close(found.double(), expected, **close)
    torch.testing.assert_close(last.double(), expected[ends], **close)
    memory = parts[:, repeat * groups :].unflatten(1, (2, groups)).split(counts)
    for number, held in enumerate(both):
        for row, (new, count) in enumerate(zip(memory, counts, strict=True), first):
            assert held[row, :, known : known + count].equal(new[:, number].transpose(0, 1))
            assert (held[row, :, known + count :] == FAR).all()
        assert (held[:first] == FAR).all()


@needs_loops
@pytest.mark.parametrize("threads", [1, 2])
def test_loops_take_no_more_threads_than_pytorch_was_given(threads):
    """They share a library of threads, which keeps one number for both."""
    say = """
import ctypes, sys, torch
threads = int(sys.argv[1])
torch.set_num_threads(threads)
from turnwise.engines.attention import attention_of
from turnwise.engines.cache import Cache
kept = Cache(torch.device("cpu"))
for _ in range(64):
    kept.admit([0])
_, positions = kept.extend(0, [[0] * 8] * 64)
parts = torch.randn(512, 6, 32)
attention_of(positions, [8] * 64, 2, kept, False)(parts, 0, None)
library = ctypes.CDLL("libgomp.so.1")
import numba
print(torch.get_num_threads(), library.omp_get_max_threads(), numba.get_num_threads(), numba.threading_layer())
"""
    said = subprocess.run([sys.executable, "-c", say, str(threads)], capture_output=True, text=True, check=True).stdout
    most = min(threads, len(os.sched_getaffinity(0)))
    assert said.split() == [str(threads), str(threads), str(most), "omp"]


SAY_BITS = """
import hashlib, sys, torch
from numba.core import caching
if sys.argv[1:] == ["nowhere"]:
    caching.FunctionCache._impl_class._locator_classes = []
from turnwise.engines.attention import attention_of
from turnwise.engines.cache import Cache
bits = hashlib.sha256()
for size in (6, 24, 32, 64):
    kept = Cache(torch.device("cpu"))
    for row in range(9):
        kept.admit([0])
        kept._rows[row].held = [0] * (20 * row)
    _, positions = kept.extend(0, [[0] * 3] * 9)
    random = torch.Generator().manual_seed(size)
    parts = torch.randn(27, 8, size, generator=random)
    for held in kept.tensors(0, 2, parts):
        held.copy_(torch.randn(held.shape, generator=random))
    bits.update(attention_of(positions, [3] * 9, 2, kept, False)(parts, 0, None).numpy().tobytes())
from turnwise.engines.loops import attend
print(bits.hexdigest(), sum(attend.stats.cache_hits.values()), sum(attend.stats.cache_misses.values()))
"""


@needs_loops
def test_loops_find_the_same_bits_when_they_are_compiled_and_when_they_were(tmp_path):
    """So that the first run on a machine is like any later one, and like one where nothing may be written."""

    def said(*where: str) -> list[str]:
        there = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
        command = [sys.executable, "-c", SAY_BITS, *where]
        return subprocess.run(command, env=there, capture_output=True, text=True, check=True).stdout.split()

    bits, *compiled = said()
    assert compiled == ["0", "1"]
    assert said() == [bits, "1", "0"]
    assert said("nowhere") == [bits, "0", "1"]
