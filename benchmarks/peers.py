"""Contestants in processes of their own, those of other projects with packages of their own, asked in turn.

All are loaded before the first round. Then each computes one round while the others are stopped, and so on round
after round, so that whatever else the machine does meets them all alike.
"""

import json
import os
import signal
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.workers.serve import Job

ROOT = Path(__file__).parent.parent
CACHE = Path(os.environ.get("TURNWISE_BENCH_CACHE") or "~/.cache/turnwise-bench").expanduser()
EVERYBODY = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # Memory that is freed stays with the process, as Turnwise's command line has it.
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TOP_PAD_": str(2**26),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",  # in large pages, likewise
}


@dataclass(frozen=True)
class Contestant:
    module: str  # of benchmarks
    unequal: str  # in what its work differs from the others'
    environment: str = ""  # name of the folder with its packages; empty: this very environment
    installs: Sequence[str] = ()  # arguments of pip, one call after the other
    variables: Mapping[str, str] = field(default_factory=dict)
    arguments: Sequence[str] = ()

    def words(self) -> dict[str, Any]:
        """What to say beside its figures."""
        return {"unequal": self.unequal, "installs": list(self.installs)}

    def python(self) -> str:
        """The interpreter to run it by; its packages are installed if they are not."""
        if not self.environment:
            return sys.executable
        folder = CACHE / self.environment
        python, done = folder / "bin" / "python", folder / "installed.json"
        if not done.exists() or json.loads(done.read_text()) != list(self.installs):
            print(f"installing {self.environment} into {folder}", flush=True)
            venv.create(folder, clear=True, with_pip=True)
            for arguments in self.installs:
                subprocess.run([python, "-m", "pip", *arguments.split()], check=True, stdout=subprocess.DEVNULL)
            done.write_text(json.dumps(list(self.installs)))
        return str(python)


class Worker:
    """A contestant that is loaded and waits."""

    def __init__(self, name: str, contestant: Contestant, job: Path):
        self.name = name
        self.log = job.with_name(f"{name}.log")
        threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [contestant.python(), "-m", f"benchmarks.{contestant.module}", str(job), *contestant.arguments],
                cwd=ROOT,
                env={**os.environ, **EVERYBODY, **threads, **contestant.variables},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                process_group=0,  # its children stop and go with it
            )
        self._answer()

    def ask(self, request: Mapping[str, Any]) -> dict[str, float]:
        """One round, while every other worker is stopped."""
        os.killpg(self.process.pid, signal.SIGCONT)
        assert self.process.stdin
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, float]:
        assert self.process.stdout
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.name} ended:\n{self.log.read_text()[-2000:]}")
        os.killpg(self.process.pid, signal.SIGSTOP)
        return json.loads(answer)

    def peak_mib(self) -> float:
        """Most resident memory so far, its child processes included."""
        kib = 0
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if os.getpgid(int(folder.name)) == self.process.pid:
                    status = (folder / "status").read_text()
                    kib += int(status.partition("VmHWM:")[2].split()[0])
            except (OSError, IndexError):  # it ended meanwhile
                continue
        return kib / 1024

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def compete(
    contestants: Mapping[str, Contestant], job: Job, folder: Path, requests: Sequence[Mapping[str, Any]], rounds: int
) -> tuple[dict[str, list[list[dict[str, float]]]], dict[str, float]]:
    """The answers by contestant, request and round, of `rounds` rounds after one to warm up; and peaks in MiB."""
    path = folder / "job.json"
    path.write_text(json.dumps(asdict(job)))
    answers: dict[str, list[list[dict[str, float]]]] = {name: [[] for _ in requests] for name in contestants}
    workers: list[Worker] = []
    try:
        for name, contestant in contestants.items():
            print(f"loading {name}", flush=True)
            workers.append(Worker(name, contestant, path))
        for number in range(rounds + 1):
            for index, request in enumerate(requests):
                for worker in workers:
                    answer = worker.ask(request)
                    if number:
                        answers[worker.name][index].append(answer)
            print(f"round {number} of {rounds}", flush=True)
        return answers, {worker.name: worker.peak_mib() for worker in workers}
    finally:
        for worker in workers:
            worker.close()
