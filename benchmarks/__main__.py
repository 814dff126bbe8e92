"""python -m benchmarks [horizon] [slow_slot]"""

import sys

from benchmarks import horizon, slow_slot

ALL = {"horizon": horizon.main, "slow_slot": slow_slot.main}

for name in sys.argv[1:] or ALL:
    if name not in ALL:
        sys.exit(f"unknown benchmark {name!r}; there are {', '.join(ALL)}")
    ALL[name]()
