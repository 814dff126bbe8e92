"""How many cores this process may use: in a container or a job of a cluster fewer than the machine has."""

import os
from collections.abc import Iterator
from math import ceil
from pathlib import Path


def cores(groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """As many as it is bound to, and as its control groups (`groups`, of which `own` names its one) grant it time on.

    One at least; a part of a core counts as a core.
    """
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([bound, *map(ceil, _quotas(groups, own))]))


def _quotas(groups: Path, own: Path) -> Iterator[float]:
    """Cores' worth of time, by each group that the process is in; in the first version of groups, by the outermost."""
    try:
        paths = [line.rpartition(":")[2] for line in own.read_text().splitlines() if line.startswith("0::")]
    except OSError:
        paths = []
    for path in paths or ["/"]:
        folder = groups / path.lstrip("/")
        for group in (folder, *folder.parents):
            if group.is_relative_to(groups):
                yield from _quota(group / "cpu.max")
    yield from _quota(groups / "cpu" / "cpu.cfs_quota_us", groups / "cpu" / "cpu.cfs_period_us")


def _quota(*files: Path) -> Iterator[float]:
    try:
        quota, period = " ".join(file.read_text() for file in files).split()
        if float(quota) > 0:
            yield float(quota) / float(period)
    except (OSError, ValueError):  # no such file, or no limit
        pass


if __name__ == "__main__":
    print(cores())
