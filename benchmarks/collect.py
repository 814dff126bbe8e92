"""How much time do batches of a fixed number of turns save over batches of whole episodes?

Episode lengths are geometric (mean 30, at most 400), and one environment in eight answers slowly. A batch of whole
episodes is over when the longest is; in a batch of turns every slot has as much to do.
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

SLOTS, TURNS = 32, 8
MEAN, CAP = 30, 400
SLOW_S = 0.1  # a turn of the slow environments; the others take a tenth of it
ROUNDS = 3


class Geometric(Endless):
    """Ends after each turn with the same probability."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.limit = min(CAP, int(np.random.default_rng(seed).geometric(1 / MEAN)))
        return super().reset(seed=seed, options=options)


def main() -> None:
    turns: dict[str, list[float]] = {"turns": [], "episodes": []}
    idle: dict[str, list[float]] = {"turns": [], "episodes": []}
    config = settings()
    engine, renderer = open_player(config, None)
    collectors = {name: Collector(config, renderer) for name in turns}
    for _ in range(ROUNDS):
        for name, collector in collectors.items():
            rate, waiting = asyncio.run(batch(name, collector, engine))
            turns[name].append(rate)
            idle[name].append(waiting)
    for collector in collectors.values():
        collector.close()
    figures = {f"turns_per_s_in_batches_of_{name}": statistics.median(series) for name, series in turns.items()}
    figures |= {f"idle_share_in_batches_of_{name}": statistics.median(series) for name, series in idle.items()}
    ratio = statistics.median(mine / theirs for mine, theirs in zip(turns["turns"], turns["episodes"], strict=True))
    record("collect", {**figures, "ratio": ratio})


def settings() -> Config:
    tasks = {f"{number}": {"sleep_s": SLOW_S if number == 0 else SLOW_S / 10} for number in range(8)}
    return parse_config(
        {
            "environment": {"id": f"{__name__}:Geometric", "workers": "thread", "tasks": tasks},
            "parser": {"cue": "Answer with THINK: and ACTION:"},
            "rollout": {"n_env": SLOTS, "e_len": TURNS, "max_prompt_tokens": 512, "max_reply_tokens": 24},
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
            await slot.play(engine, TURNS)
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
