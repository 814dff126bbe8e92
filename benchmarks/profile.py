"""Where does the time of a training step of `babyai-quick` go? By phase, and by what the processor computed.

The trace of the step, for chrome://tracing or ui.perfetto.dev, is left beside the peers' packages.
"""

import json
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.common import record
from benchmarks.peers import CACHE
from turnwise.allocator import keep_freed_memory
from turnwise.engines.local import LocalEngine
from turnwise.lanes import Lanes
from turnwise.recipe import load_config
from turnwise.render import Renderer
from turnwise.train import Training

STEPS = 3  # before those that are looked at: memory is set aside, and the critic's kernels are chosen
KINDS = {  # by the beginnings of the names of PyTorch's operators, and of our kernels whose parts they are
    "attention": ("_Attention", "aten::_scaled_dot_product", "aten::scaled_dot_product"),
    "products": ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "mkldnn::"),
    "copies_and_casts": ("aten::copy_", "aten::cat", "aten::index", "aten::gather", "aten::fill_", "aten::zero_"),
    "optimizer": ("aten::_fused", "aten::_foreach", "Optimizer."),
}


def main() -> None:
    keep_freed_memory()  # as the command line does
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        training = Training(load_config("babyai-quick", [f"run={folder}", "warmup.w_epoch=0"]), resume=False)
        for _ in range(STEPS):
            training.step()
        phases = step(training, folder)
        torch.set_num_threads(1)  # what one core does is what all do, and can be told in shares
        training.policy.lanes = Lanes(1)
        stops = Renderer(training.tokenizer).stop_ids
        training.engine = LocalEngine(training.policy.actor, stops, training.policy.precision)
        step(training, folder)
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            alone = step(training, folder)
        training.collector.close()
    CACHE.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(CACHE / "step.json.gz"))
    seconds: dict[str, float] = defaultdict(float)
    for event in profiler.events() or []:
        seconds[kind(event)] += event.self_cpu_time_total / 1e6
    seconds["python"] = alone["step"] - sum(seconds.values())
    figures = {f"share_of_{phase}": phases[phase] / phases["step"] for phase in ("collect", "score", "update")}
    figures |= {f"share_of_{what}": taken / alone["step"] for what, taken in seconds.items()}
    record("profile", {"step_s": phases["step"], "step_s_of_one_core": alone["step"], **figures})


def step(training: Training, folder: Path) -> dict[str, float]:
    """The seconds of a step, by phase."""
    training.step()
    figures = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    return {phase: figures[f"time/{phase}_s"] for phase in ("collect", "score", "update", "step")}


def kind(event: Any) -> str:
    """That of the outermost that has one: a kernel of ours is one thing, whatever it is made of."""
    found = "other_operators"
    while event is not None:
        found = next((name for name, starts in KINDS.items() if event.name.startswith(starts)), found)
        event = event.cpu_parent
    return found


if __name__ == "__main__":
    main()
