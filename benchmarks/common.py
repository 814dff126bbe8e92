"""What the benchmarks share: an environment without end, and a place for their figures."""

import json
import platform
import time
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
import torch

RESULTS = Path(__file__).parent / "results"


class Endless(gymnasium.Env[Any, Any]):
    """Lasts `limit` turns, whatever is done; each of them takes `sleep_s` seconds."""

    observation_space = gymnasium.spaces.Text(200)
    action_space = gymnasium.spaces.Text(100)
    actions = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle")
    default_action = "go forward"

    def __init__(self, limit: int = 2_000, sleep_s: float = 0.0):
        self.limit = limit
        self.sleep_s = sleep_s

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.turn = 0
        return self._observation(), {}

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.sleep_s:  # even no sleep at all takes some time
            time.sleep(self.sleep_s)
        self.turn += 1
        return self._observation(), 0.0, False, self.turn == self.limit, {"success": False}

    def _observation(self) -> dict[str, str]:
        text = f"a wall {1 + self.turn % 6} steps forward\na red ball {1 + self.turn % 3} steps left"
        return {"text": text, "instructions": "Your goal: go to the blue box.\nActions: " + ", ".join(self.actions)}


def rss_mib() -> float:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


_ENOUGH_S = 5.0
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}


def product_rate(
    device: torch.device, size: int = 2048, rounds: int = 20, precisions: Iterable[str] = PRECISIONS
) -> dict[str, float]:
    """GFLOP/s of square matrix products, the best of some rounds, by precision: what nothing else can exceed.

    Fewer rounds where they take seconds, as in bf16 on a processor without it.
    """
    rates = {}
    for name in precisions:
        dtype = PRECISIONS[name]
        a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        seconds: list[float] = []
        while len(seconds) < rounds and sum(seconds) < _ENOUGH_S:
            start = time.perf_counter()
            float((a @ b)[0, 0])  # waits for a GPU too
            seconds.append(time.perf_counter() - start)
        rates[name] = 2 * size**3 / min(seconds) / 1e9
    return rates


def record(name: str, figures: dict[str, Any]) -> None:
    """Print the figures and keep them."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps({**figures, **machine()}, indent=1) + "\n")
    for key, value in figures.items():
        print(f"{name}: {key} = {value:.4g}" if isinstance(value, float) else f"{name}: {key} = {value}")


def machine() -> dict[str, Any]:
    """On what figures were measured."""
    tiles = ", AMX" if torch.cpu._is_amx_tile_supported() else ""
    found = {
        "machine": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}{tiles}",
        "threads": torch.get_num_threads(),
        **{package: version(package) for package in ("torch", "transformers")},
    }
    return found | ({"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {})
