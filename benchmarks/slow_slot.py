"""Does an environment that sleeps two seconds a turn delay the other slots?"""

import asyncio
import statistics
import time

from benchmarks.common import record
from turnwise.collector import Collector
from turnwise.config import Config
from turnwise.players import open_player
from turnwise.protocols import Codec, Engine
from turnwise.recipe import parse_config

SLEEP_S = 2.0
ROUNDS = 5  # of both contestants, in turn
TURNS = 12


def main() -> None:
    config, times = settings(), {"alone": list[float](), "beside": list[float]()}
    for _ in range(ROUNDS):
        for name, series in times.items():
            engine, renderer = open_player(config, None)
            series.append(asyncio.run(seconds_a_turn(config, engine, renderer, beside=name == "beside")))
    alone, beside = (statistics.median(times[name]) for name in ("alone", "beside"))
    ratio = statistics.median(b / a for a, b in zip(times["alone"], times["beside"], strict=True))
    record("slow_slot", {"ms_a_turn": 1e3 * alone, "ms_a_turn_beside_a_sleeper": 1e3 * beside, "ratio": ratio})


def settings() -> Config:
    tasks = {"sleeper": {"sleep_s": SLEEP_S}, **{f"other{number}": {} for number in range(7)}}
    return parse_config(
        {
            "environment": {"id": "benchmarks.common:Endless", "workers": "thread", "tasks": tasks},
            "parser": {"cue": "Answer with THINK: and ACTION:"},
            "rollout": {"n_env": len(tasks), "e_len": TURNS, "max_prompt_tokens": 512, "max_reply_tokens": 16},
            "update": {"minibatch": TURNS},
        }
    )


async def seconds_a_turn(config: Config, engine: Engine, renderer: Codec, beside: bool) -> float:
    """Mean over the slots that do not sleep, from the start of the batch to their own last turn.

    The one that sleeps plays `beside` them, or does not play.
    """
    slots = Collector(config, renderer).slots
    start = time.perf_counter()

    async def play(number: int) -> float:
        await slots[number].play(engine, TURNS)
        return (time.perf_counter() - start) / TURNS

    sleepers = [asyncio.create_task(play(0))] if beside else []
    others = await asyncio.gather(*(play(number) for number in range(1, len(slots))))
    for sleeper in sleepers:
        sleeper.cancel()
    return statistics.mean(others)


if __name__ == "__main__":
    main()
