"""How much time do batches of a fixed number of turns save over batches of whole episodes?

Episode lengths are geometric (mean 30, at most 400). A batch of whole episodes is over when the longest is; in a batch
of turns every slot has as much to do. With environments that answer at once, and again with one in eight that is slow.
"""

import asyncio
import statistics
import time
from typing import Any

import numpy as np

from benchmarks.common import Endless, record
from turnwise.collector import Collector, play_all
from turnwise.config import Config
from turnwise.evaluate import open_player
from turnwise.protocols import Engine
from turnwise.recipe import parse_config
from turnwise.slot import Slot

SLOTS = 32
MEAN, CAP = 30, 400  # of episodes in turns; a batch of turns has as many a slot, so that both kinds are of one size
LATENCIES = {"collect": 0.0, "collect_slow": 0.1}  # seconds a turn of the slow ones; the others take a tenth of it
ROUNDS = 5


class Geometric(Endless):
    """Ends after each turn with the same probability."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.limit = min(CAP, int(np.random.default_rng(seed).geometric(1 / MEAN)))
        return super().reset(seed=seed, options=options)


def main() -> None:
    for name, slow_s in LATENCIES.items():
        record(name, measured(slow_s))


def measured(slow_s: float) -> dict[str, float]:
    turns: dict[str, list[float]] = {"turns": [], "episodes": []}
    idle: dict[str, list[float]] = {"turns": [], "episodes": []}
    config = settings(slow_s)
    engine, renderer = open_player(config, None)
    collectors = {name: Collector(config, renderer) for name in turns}
    with asyncio.Runner() as runner:
        for number in range(ROUNDS + 1):  # the first warms up
            for name, collector in collectors.items():
                rate, waiting = runner.run(batch(name, collector, engine))
                if number:
                    turns[name].append(rate)
                    idle[name].append(waiting)
    for collector in collectors.values():
        collector.close()
    figures = {f"turns_per_s_in_batches_of_{name}": statistics.median(series) for name, series in turns.items()}
    figures |= {f"idle_share_in_batches_of_{name}": statistics.median(series) for name, series in idle.items()}
    ratio = statistics.median(mine / theirs for mine, theirs in zip(turns["turns"], turns["episodes"], strict=True))
    return {**figures, "ratio": ratio}


def settings(slow_s: float) -> Config:
    tasks = {f"{number}": {"sleep_s": slow_s if number == 0 else slow_s / 10} for number in range(8)}
    return parse_config(
        {
            "environment": {"id": f"{__name__}:Geometric", "workers": "thread" if slow_s else "inline", "tasks": tasks},
            "parser": {"cue": "Answer with THINK: and ACTION:"},
            "rollout": {"n_env": SLOTS, "e_len": MEAN, "max_prompt_tokens": 512, "max_reply_tokens": 24},
            "update": {"minibatch": 64},
        }
    )


async def batch(name: str, collector: Collector, engine: Engine) -> tuple[float, float]:
    """Turns a second, and the share of the slots' time spent waiting for the batch to end."""
    engine.load({}, 0)
    start = time.perf_counter()
    busy: list[float] = []

    async def play(slot: Slot) -> None:
        if name == "turns":
            await slot.play(engine, MEAN)
        else:
            while not slot.segments:  # the first to close holds the whole episode
                await slot.play_episodes(engine, 1)
        busy.append(time.perf_counter() - start)

    await play_all(play(slot) for slot in collector.slots)
    whole = time.perf_counter() - start
    played = sum(slot.collected for slot in collector.slots)
    for slot in collector.slots:
        slot.cut()
    return played / whole, 1 - statistics.mean(busy) / whole


if __name__ == "__main__":
    main()
