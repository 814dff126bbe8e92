"""Memory that was freed is not cleared by the system again, in whatever thread."""

import subprocess
import sys
from pathlib import Path

import pytest

A_THREAD_SETS_MEMORY_ASIDE = """
import resource, threading
import torch
from turnwise.allocator import keep_freed_memory

def touched(size):
    tensor = torch.empty(size, dtype=torch.uint8)
    tensor[::4096] = 1
    return tensor

def cleared():
    "Pages, while layers are read forwards and backwards."
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    held = []
    for _ in range(5):
        held += map(touched, (37_000_000, 18_000_000, 7_000_000, 15_000_000))
        beside = touched(15_000_000)
    while held:
        held.pop()
        beside = touched(15_000_000)
        beside = touched(37_000_000)
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before

keep_freed_memory()
thread = threading.Thread(target=lambda: print(*(cleared() for _ in range(12))))
thread.start()
thread.join()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the allocator of glibc is told to keep it")
def test_a_thread_keeps_the_memory_that_it_frees():
    done = subprocess.run(
        [sys.executable, "-c", A_THREAD_SETS_MEMORY_ASIDE], capture_output=True, text=True, check=True
    )
    first, *others = map(int, done.stdout.split())
    assert sum(others[-6:]) < first / 2  # though six times as much was set aside


LARGE_PAGES = """
import re
from pathlib import Path
from turnwise.allocator import keep_freed_memory

keep_freed_memory()
import torch

held = torch.ones(25_000_000)
told = re.findall(r"Rss: +([0-9]+)(?:.*\\n)*?VmFlags:(.*)", Path("/proc/self/smaps").read_text())
print(sum(int(kib) for kib, flags in told if "hg" in flags.split()))
"""


def large_pages() -> str:
    file = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return file.read_text() if file.exists() else "[never]"


@pytest.mark.skipif("[never]" in large_pages(), reason="the system has no large pages for those who ask")
def test_large_pages_are_asked_for_what_the_main_thread_sets_aside():
    done = subprocess.run([sys.executable, "-c", LARGE_PAGES], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 90_000  # KiB: the 100 MB, whether the system has such pages left or not
