"""How much time do batches of a fixed number of turns save over batches of whole episodes?

Episode lengths are geometric (mean 30, at most 400). A batch of whole episodes is over when the longest is; in a batch
of turns every slot has as much to do, or, where it is elastic, as much as it has time for: it is over with its last
turn, and what is under way then goes on in the next one. Batches of whole episodes are collected in the three ways in
which somebody waits, and in the one in which nobody does, whose batches have other episodes: the short ones come first.
With environments that answer at once, and again with one in eight that is slow; batches of as many turns as the recipes
have, and larger ones.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count, product
from typing import Any

import numpy as np
from torch import Tensor

from benchmarks.common import Endless, record
from turnwise.collector import Collector, play_all
from turnwise.config import Config
from turnwise.engines.local import LocalEngine
from turnwise.engines.make import make_engine
from turnwise.models import arithmetic, open_model
from turnwise.policy import Policy
from turnwise.protocols import Engine, Pausable
from turnwise.recipe import parse_config
from turnwise.render import Renderer
from turnwise.slot import Slot
from turnwise.types import Turn

SLOTS = 32  # of batches of turns
MEAN, CAP = 30, 400  # of episodes in turns


@dataclass(frozen=True)
class Case:
    turns: int  # of every slot, in a batch of turns
    episodes: int  # in a batch of whole ones, a slot each: as few as have, by their mean, as many turns as all slots
    rounds: int
    slow_s: float = 0.0  # seconds a turn of the slow environments; the others take a tenth of it


CASES = {"": Case(8, 9, 20), "_large": Case(MEAN, SLOTS, 5)}
CASES |= {f"{name}_slow": replace(case, rounds=case.rounds // 2, slow_s=0.1) for name, case in CASES.items()}
WAYS = {
    "turns": "every slot has as many turns to play",
    "turns_elastic": "all slots together have as many turns to play",
    "turns_elastic_64": "the same, by twice as many slots",
    "episodes": "every slot plays one episode at its own pace, and waits (asynchronous agent loops)",
    "episodes_in_step": "all wait for all after every turn, and whoever has ended leaves (VAGEN, RAGEN)",
    "episodes_all_in_step": "the same, but whoever has ended plays on, for nothing, until all have (verl-agent)",
    "episodes_carried": "full when so many episodes have ended; the others go on in the next (partial rollouts)",
}
ON_AND_ON = ("turns_elastic", "turns_elastic_64", "episodes_carried")  # batches begin in the middle of replies
OURS = ("turns", "turns_elastic", "turns_elastic_64")
_VERSIONS = count(1)


class Carrying(Collector):
    """Its batches are over with the last of so many episodes, whatever turns of others there are by then."""

    def __init__(self, config: Config, codec: Any, episodes: int):
        super().__init__(config, codec)
        self.episodes = episodes

    def is_full(self) -> bool:
        segments = [segment for slot in self.slots for segment in slot.share.segments]
        return sum(segment.outcome is not None for segment in segments) >= self.episodes


class Geometric(Endless):
    """Ends after each turn with the same probability."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.limit = min(CAP, int(np.random.default_rng(seed).geometric(1 / MEAN)))
        return super().reset(seed=seed, options=options)


def main() -> None:
    measure("collect")


def measure(name: str, others: Mapping[str, Any] | None = None, cases: Mapping[str, Case] = CASES) -> None:
    """Keep the figures of these cases, with other settings such as an engine or a model."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        config = settings(CASES[""], "turns", {**(others or {}), "run": folder})
        model, tokenizer = open_model(config.model)
        renderer, precision = Renderer(tokenizer), arithmetic(config.model.precision, model.device)
        policy = Policy(model, "none", reference=False, precision=precision)

        def make() -> Any:
            return make_engine(config, policy.actor, renderer.stop_ids, precision)

        engines: dict[str, Any] = dict.fromkeys(WAYS, make())
        if config.engine.use == "local":  # it stands still in the middle of replies
            engines |= {way: make() for way in ON_AND_ON}
        else:
            stack.callback(engines["turns"].close)
        for suffix, case in cases.items():
            record(name + suffix, measured(case, engines, policy.weights(), renderer))


def measured(
    case: Case, engines: Mapping[str, Any], weights: Mapping[str, Tensor], renderer: Renderer
) -> dict[str, float]:
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    idle: dict[str, list[float]] = {way: [] for way in WAYS}
    collectors = {way: make_collector(case, way, renderer) for way in WAYS}
    elastic = {way: Elastic(collectors[way]) for way in ON_AND_ON}
    with asyncio.Runner() as runner:
        for number in range(case.rounds + 1):  # the first warms up
            for way, collector in collectors.items():
                engine = engines[way]
                engine.load(weights, next(_VERSIONS))  # as in training: what was read before is worth nothing
                if way in elastic:
                    turns, seconds, waiting = elastic[way].batch(engine)
                    idle[way] = [waiting]
                else:
                    turns, seconds, waiting = runner.run(batch(way, collector, engine))
                    idle[way] += [waiting] * (number > 0)
                rates[way] += [turns / seconds] * (number > 0)
    for collector in collectors.values():
        collector.close()
    figures: dict[str, float] = {"rounds": case.rounds}
    figures |= {f"turns_per_s_in_batches_of_{way}": statistics.median(series) for way, series in rates.items()}
    figures |= {f"idle_share_in_batches_of_{way}": statistics.median(series) for way, series in idle.items()}
    for ours, theirs in product(OURS, [way for way in WAYS if way not in OURS]):
        ratios = [mine / its for mine, its in zip(rates[ours], rates[theirs], strict=True)]
        figures[f"{ours}_times_as_fast_as_{theirs}"] = statistics.median(ratios)
    return figures


def make_collector(case: Case, way: str, codec: Any) -> Collector:
    config = settings(case, way)
    return Carrying(config, codec, case.episodes) if way == "episodes_carried" else Collector(config, codec)


def settings(case: Case, way: str, others: Mapping[str, Any] | None = None) -> Config:
    slow = case.slow_s
    # Slots are dealt the tasks in turn: the fifth is one of 9 slots' and four of 32 slots'.
    tasks = {f"{number}": {"sleep_s": slow if number == 4 else slow / 10} for number in range(8)}
    ours = way in OURS or way == "episodes_carried"  # whose slots are as many
    slots = 2 * SLOTS if "64" in way else SLOTS if ours else case.episodes
    return parse_config(
        {
            "environment": {"id": f"{__name__}:Geometric", "workers": "thread" if slow else "inline", "tasks": tasks},
            "parser": {"cue": "Answer with THINK: and ACTION:"},
            "rollout": {
                "n_env": slots,
                "e_len": SLOTS * case.turns // slots if ours else case.turns,
                "mode": "elastic" if way in ON_AND_ON else "async",
                "max_prompt_tokens": 512,
                "max_reply_tokens": 24,
            },
            "update": {"minibatch": slots},
            **(others or {}),
        }
    )


class Elastic:
    """Batches of turns one after the other: when one is full, what is under way goes on in the next."""

    def __init__(self, collector: Collector):
        self._collector = collector
        self._seconds = self._start = 0.0  # of batches that are over; of the one under way
        self._last = dict.fromkeys(collector.slots, 0.0)  # seconds until the last turn of each slot
        for slot in collector.slots:
            self._watch(slot)

    def _watch(self, slot: Slot) -> None:
        record = slot.record

        def watched(turn: Turn) -> None:
            record(turn)
            self._last[slot] = self._seconds + time.perf_counter() - self._start

        slot.record = watched

    def batch(self, engine: Any) -> tuple[int, float, float]:
        """Turns, seconds, and the share of the slots' time so far that came after the last turn of each."""
        self._start = time.perf_counter()
        segments = self._collector.collect(engine)
        seconds = time.perf_counter() - self._start
        self._seconds += seconds
        # A server must hear of the pause before it serves the next contestant.
        if isinstance(engine, Pausable) and not isinstance(engine, LocalEngine):
            self._collector._runner.run(asyncio.sleep(0.1))
            engine.resume()
        waiting = 1 - statistics.mean(self._last.values()) / self._seconds
        return sum(len(segment.turns) for segment in segments), seconds, waiting


async def batch(way: str, collector: Collector, engine: Engine) -> tuple[int, float, float]:
    """Turns that can be trained on, seconds, and the share of the slots' time in which they played none of those."""
    start = time.perf_counter()
    useful: dict[Slot, tuple[int, float]] = {}  # turns, and seconds until the last of them

    def note(slot: Slot) -> None:
        useful.setdefault(slot, (slot.share.acted, time.perf_counter() - start))

    async def play(slot: Slot) -> None:
        if way == "turns":
            await slot.play(engine, collector.config.rollout.e_len)
        else:
            await slot.play_episodes(engine, 1)
        note(slot)

    async def turn(slot: Slot) -> None:
        await slot.play(engine, slot.share.acted + 1)
        if slot.share.segments:
            note(slot)

    if "step" not in way:
        await play_all(play(slot) for slot in collector.slots)
    while len(useful) < len(collector.slots):
        stay = [slot for slot in collector.slots if way == "episodes_all_in_step" or slot not in useful]
        await play_all(turn(slot) for slot in stay)
    whole = time.perf_counter() - start
    for slot in collector.slots:
        slot.cut()  # what goes on in the next batch lasts as long as a new episode would: geometric lengths do not age
    turns, seconds = zip(*useful.values(), strict=True)
    return sum(turns), whole, 1 - statistics.mean(seconds) / whole


if __name__ == "__main__":
    main()
