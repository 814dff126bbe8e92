"""Where does the time of a training step of `babyai-quick` go? By phase, and by what the processor computed.

The trace of the step, for chrome://tracing or ui.perfetto.dev, is left beside the peers' packages.
"""

import json
import tempfile
from collections import defaultdict
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from benchmarks.common import record
from benchmarks.peers import CACHE
from turnwise.recipe import load_config
from turnwise.train import Training

STEPS = 3  # before the one that is looked at: memory is set aside, and the critic's kernels are chosen
KINDS = {  # by the beginnings of the names of PyTorch's operators
    "products": ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "mkldnn::"),
    "attention": ("aten::_scaled_dot_product", "aten::scaled_dot_product"),
    "copies_and_casts": ("aten::copy_", "aten::cat", "aten::index", "aten::gather", "aten::fill_", "aten::zero_"),
    "optimizer": ("aten::_fused", "aten::_foreach", "Optimizer."),
}


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        training = Training(load_config("babyai-quick", [f"run={folder}", "warmup.w_epoch=0"]), resume=False)
        for _ in range(STEPS):
            training.step()
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            training.step()
        laps = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
        training.collector.close()
    CACHE.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(CACHE / "step.json.gz"))
    seconds: dict[str, float] = defaultdict(float)
    for row in profiler.key_averages():
        seconds[kind(row.key)] += row.self_cpu_time_total / 1e6
    whole = laps["time/step_s"]
    seconds["python"] = whole - sum(seconds.values())
    figures = {f"share_of_{name}": laps[f"time/{name}_s"] / whole for name in ("collect", "score", "update")}
    figures |= {f"share_of_{name}": taken / whole for name, taken in seconds.items()}
    record("profile", {"step_s_under_the_profiler": whole, **figures})


def kind(operator: str) -> str:
    return next((name for name, starts in KINDS.items() if operator.startswith(starts)), "other_operators")


if __name__ == "__main__":
    main()
