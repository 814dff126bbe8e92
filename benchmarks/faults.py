"""10,000 turns in environments that crash, hang and answer garbage: is everything counted as their schedule foretells?

Of all calls 5% crash, 1% hang and 1% answer garbage. In processes a fifth of the crashes end the process; others raise.
"""

import re
import sys
import time
from contextlib import closing
from pathlib import Path

from benchmarks.common import record

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from faulty import foretell
from helpers import Scripted, make_tokenizer

from turnwise.collector import Collector
from turnwise.config import Config
from turnwise.recipe import parse_config
from turnwise.render import Renderer

TURNS = 10_000
SLOTS = {"thread": 40, "process": 10}
TIMEOUT_S = 1.0
BATCHES = 2
SEEN = re.compile(r"level (\d+) turn (\d+)")


def main() -> None:
    renderer = Renderer(make_tokenizer())
    figures: dict[str, float] = {"turns": TURNS}
    for workers in SLOTS:
        config = settings(workers)
        start = time.perf_counter()
        failures = dropped = wrong = 0
        with closing(Collector(config, renderer)) as collector:
            for foretold in foretell(config, BATCHES):
                segments = collector.collect(Scripted(renderer, ["ACTION: go", "ACTION: stay"]))
                tally = collector.tally
                texts = [
                    [turn.observation.text for one in segments if one.slot == slot for turn in one.turns]
                    for slot in range(SLOTS[workers])
                ]
                seen = [[(int(m[1]), int(m[2])) for text in mine if (m := SEEN.match(text))] for mine in texts]
                wrong += seen != foretold.turns
                wrong += (tally.failures, tally.dropped_turns) != (foretold.failures, foretold.dropped_turns)
                failures, dropped = failures + tally.failures, dropped + tally.dropped_turns
        figures |= {
            f"{workers}_seconds": time.perf_counter() - start,
            f"{workers}_failures": failures,
            f"{workers}_dropped_turns": dropped,
            f"{workers}_batches_not_as_foretold": wrong,
        }
    record("faults", figures)


def settings(workers: str) -> Config:
    slots = SLOTS[workers]
    schedule = {"crash": 0.05, "deadly": 0.2 * (workers == "process"), "hang": 0.01, "garbage": 0.01, "length": 30}
    return parse_config(
        {
            "environment": {
                "id": "faulty:Faulty",
                "kwargs": schedule,
                "reward": "native",
                "workers": workers,
                "processes": slots if workers == "process" else None,  # shared ones are lost together, at random times
                "timeout_s": TIMEOUT_S,
                "max_failures": TURNS,  # so long a share of a batch fails often
            },
            "memory": {"use": "window", "turns": 1},
            "parser": {"cue": "Act."},
            "rollout": {"n_env": slots, "e_len": TURNS // slots // BATCHES, "max_reply_tokens": 12},
            "update": {"minibatch": 1},
        }
    )


if __name__ == "__main__":
    main()
