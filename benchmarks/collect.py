"""How much time do batches of a fixed number of turns save over batches of whole episodes?

Episode lengths are geometric (mean 30, at most 400). A batch of whole episodes is over when the longest is; in a batch
of turns every slot has as much to do, or, where it is elastic, as much as it has time for. Batches of whole episodes
are collected in the three ways that are in use. With environments that answer at once, and again with one in eight that
is slow.
"""

import asyncio
import statistics
import time
from functools import partial
from itertools import product
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
WAYS = {
    "turns": "every slot has as many turns to play",
    "turns_elastic": "all slots together have as many turns to play",
    "episodes": "every slot plays one episode at its own pace, and waits (asynchronous agent loops)",
    "episodes_in_step": "all wait for all after every turn, and whoever has ended leaves (VAGEN, RAGEN)",
    "episodes_all_in_step": "the same, but whoever has ended plays on, for nothing, until all have (verl-agent)",
}
OURS = ("turns", "turns_elastic")


class Geometric(Endless):
    """Ends after each turn with the same probability."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.limit = min(CAP, int(np.random.default_rng(seed).geometric(1 / MEAN)))
        return super().reset(seed=seed, options=options)


def main() -> None:
    for name, slow_s in LATENCIES.items():
        record(name, measured(slow_s))


def measured(slow_s: float) -> dict[str, float]:
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    idle: dict[str, list[float]] = {way: [] for way in WAYS}
    config = settings(slow_s)
    engine, renderer = open_player(config, None)
    collectors = {way: Collector(config, renderer) for way in WAYS}
    with asyncio.Runner() as runner:
        for number in range(ROUNDS + 1):  # the first warms up
            for way, collector in collectors.items():
                rate, waiting = runner.run(batch(way, collector, engine))
                if number:
                    rates[way].append(rate)
                    idle[way].append(waiting)
    for collector in collectors.values():
        collector.close()
    figures = {f"turns_per_s_in_batches_of_{way}": statistics.median(series) for way, series in rates.items()}
    figures |= {f"idle_share_in_batches_of_{way}": statistics.median(series) for way, series in idle.items()}
    for ours, theirs in product(OURS, [way for way in WAYS if way not in OURS]):
        ratios = [mine / its for mine, its in zip(rates[ours], rates[theirs], strict=True)]
        figures[f"{ours}_times_as_fast_as_{theirs}"] = statistics.median(ratios)
    return figures


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


async def batch(way: str, collector: Collector, engine: Engine) -> tuple[float, float]:
    """Turns a second that can be trained on, and the share of the slots' time in which they played none of those."""
    engine.load({}, 0)
    start = time.perf_counter()
    useful: dict[Slot, tuple[int, float]] = {}  # turns, and seconds until the last of them

    def note(slot: Slot) -> None:
        useful.setdefault(slot, (slot.collected, time.perf_counter() - start))

    async def play(slot: Slot) -> None:
        if way == "turns":
            await slot.play(engine, MEAN)
        elif way == "turns_elastic":
            await slot.play_until(engine, partial(collector.is_full_for, slot))
        else:
            await slot.play_episodes(engine, 1)
        note(slot)

    async def turn(slot: Slot) -> None:
        await slot.play(engine, slot.collected + 1)
        if slot.segments:
            note(slot)

    if "step" not in way:
        await play_all(play(slot) for slot in collector.slots)
    while len(useful) < SLOTS:
        stay = [slot for slot in collector.slots if way == "episodes_all_in_step" or slot not in useful]
        await play_all(turn(slot) for slot in stay)
    whole = time.perf_counter() - start
    for slot in collector.slots:
        slot.cut()  # what goes on in the next batch lasts as long as a new episode would: geometric lengths do not age
    turns, seconds = zip(*useful.values(), strict=True)
    return sum(turns) / whole, 1 - statistics.mean(seconds) / whole


if __name__ == "__main__":
    main()
