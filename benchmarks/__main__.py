"""python -m benchmarks [NAME ...]: these, or the quick ones."""

import sys
from importlib import import_module

QUICK = (
    "credit",
    "collect",
    "update",
    "profile",
    "horizon",
    "slow_slot",
    "stepping",
    "faults",
    "tool_latency",
    "engine_gap",
)
WITH_PEERS = ("train_step", "sample", "collect_vllm")  # they install gigabytes of other projects first
ON_GPUS = ("qwen3b", "collect_gpu")
ALL = QUICK + WITH_PEERS + ON_GPUS

names = sys.argv[1:] or QUICK
for name in names:
    if name not in ALL:
        print(f"unknown benchmark {name!r}; there are {', '.join(ALL)}", file=sys.stderr)
        sys.exit(2)
for name in names:
    import_module(f"benchmarks.{name}").main()
