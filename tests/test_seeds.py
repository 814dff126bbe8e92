import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.seeds import derive, episode_seed

SPLITS = ("train", "eval", "demo")
parts = st.lists(st.one_of(st.integers(0, 2**62), st.text("abc\ue000 ", max_size=5)), max_size=5)


def test_known_values_never_change():
    """A changed value would silently change every recorded run."""
    assert derive("sample", 7, 1) == 4050453525163722788
    assert episode_seed("train", 0, "goto", 3, 4) == 2686377385574995272


@pytest.mark.parametrize("hash_seed", ["0", "4321"])
def test_another_process_derives_the_same(hash_seed):
    code = "from turnwise.seeds import *; print(derive('x', 1), episode_seed('eval', 0, 'goto', 3))"
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(derive("x", 1)), str(episode_seed("eval", 0, "goto", 3))]


@given(parts)
def test_splits_are_disjoint_by_construction(parts):
    for number, split in enumerate(SPLITS):
        assert episode_seed(split, *parts) % 3 == number


@given(parts)
def test_seeds_have_62_bits(parts):
    for seed in (derive(*parts), *(episode_seed(split, *parts) for split in SPLITS)):
        assert 0 <= seed < 2**62


def test_episodes_slots_tasks_and_runs_have_seeds_of_their_own():
    seeds = {
        episode_seed("train", run, task, slot, episode)
        for run in range(4)
        for task in ("goto", "open")
        for slot in range(12)
        for episode in range(12)
    }
    assert len(seeds) == 4 * 2 * 12 * 12


def test_parts_do_not_run_together():
    assert len({derive(1, 23), derive(12, 3), derive(123), derive(23, 1), derive("1 23")}) == 5
