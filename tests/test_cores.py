"""A process counts the cores that it may use, by whichever group limits it most."""

import os
from pathlib import Path

import pytest

from turnwise.cores import cores

BOUND = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
OWN = "12:cpu:/old\n0::/jobs/mine\n"


@pytest.fixture
def count(tmp_path: Path):
    """Cores, where the files of control groups hold these texts, and the process is in the group /jobs/mine."""

    def count(own: str = OWN, **files: str) -> int:
        (tmp_path / "own").write_text(own)
        for name, text in files.items():
            file = tmp_path / "groups" / name.replace("__", "/").replace("_max", ".max").replace("cpu/", "cpu/cpu.")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return cores(tmp_path / "groups", tmp_path / "own")

    return count


def test_without_groups_it_is_what_the_process_is_bound_to(count, tmp_path):
    assert count() == cores(tmp_path / "nothing", tmp_path / "nothing") == BOUND
    assert count(jobs__mine__cpu_max="max 100000\n") == BOUND


@pytest.mark.parametrize(
    "files",
    [
        {"jobs__mine__cpu_max": "100000 100000\n"},
        {"jobs__cpu_max": "40000 100000\n", "jobs__mine__cpu_max": "max 100000\n"},  # a part of a core is one
        {"cpu_max": "100000 100000\n", "own": "0::/\n"},  # as a container sees its own group
        {"cpu__cfs_quota_us": "100000\n", "cpu__cfs_period_us": "100000\n", "own": "4:cpu:/old\n"},  # the first version
    ],
)
def test_a_group_of_its_own_or_around_it_grants_time_on_one(count, files):
    assert count(**files) == 1


@pytest.mark.parametrize("text", ["900000 100000\n", "-1 100000\n", "nonsense"])
def test_what_grants_more_or_nothing_that_can_be_read_limits_nothing(count, text):
    assert count(cpu_max=text) == min(9, BOUND)
