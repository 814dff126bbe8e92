"""python -m benchmarks [NAME ...]: these, or the quick ones."""

import sys

from benchmarks import (
    collect,
    credit,
    engine_gap,
    faults,
    horizon,
    profile,
    sample,
    slow_slot,
    stepping,
    tool_latency,
    train_step,
    update,
)

QUICK = {
    "credit": credit.main,
    "collect": collect.main,
    "update": update.main,
    "profile": profile.main,
    "horizon": horizon.main,
    "slow_slot": slow_slot.main,
    "stepping": stepping.main,
    "faults": faults.main,
    "tool_latency": tool_latency.main,
    "engine_gap": engine_gap.main,
}
WITH_PEERS = {"train_step": train_step.main, "sample": sample.main}  # they install gigabytes of other projects first
ALL = QUICK | WITH_PEERS

for name in sys.argv[1:] or QUICK:
    if name not in ALL:
        sys.exit(f"unknown benchmark {name!r}; there are {', '.join(ALL)}")
    ALL[name]()
