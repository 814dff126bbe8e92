"""How fast are environments without words and with them; and inline, in threads and in processes?

Random legal actions. Beside BabyAI stands the same level of MiniGrid with its own observation, beside Crafter the game
without a picture, and the original, which draws one. Resets are timed only where workers are compared.
"""

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import crafter
import gymnasium
from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel

from benchmarks.common import record
from turnwise.config import EnvironmentConfig
from turnwise.envs.babyai import TASKS, Level
from turnwise.envs.checked import make_environment
from turnwise.envs.crafter import open_game
from turnwise.envs.host import Host
from turnwise.envs.workers import Workers
from turnwise.seeds import derive

STEPS = 1_000  # of each environment, in each round
ROUNDS = 5
SLOTS = 8  # environments that play side by side, where workers are compared
BABYAI = "turnwise.envs.babyai:BabyAIText"
SHIPPED: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"babyai_{task}": (BABYAI, {"task": task}) for task in TASKS},
    "babaisai": ("turnwise.envs.babaisai:BabaIsAI", {}),
    "crafter": ("turnwise.envs.crafter:CrafterText", {}),
    "sokoban": ("turnwise.envs.sokoban:SokobanText", {}),
    "frozenlake": ("turnwise.envs.frozenlake:FrozenLakeText", {}),
}
Step = Callable[[Any], bool]  # plays an action; whether the episode is over
Player = tuple[Callable[[int], object], Step, Sequence[Any]]  # how to reset by a seed, how to step, the legal actions


class RawLevel(Level):
    """The same levels with MiniGrid's own observation: an array of what is in view."""

    gen_obs = RoomGridLevel.gen_obs


def main() -> None:
    figures: dict[str, float] = {}
    for name, (id, kwargs) in SHIPPED.items():
        text = make_environment(EnvironmentConfig(id=id, kwargs=kwargs), id.rpartition(":")[2])
        players = {"text": gymnasium_player(text, text.unwrapped.actions), **raw(name, kwargs)}  # type: ignore[attr-defined]
        rounds = [
            {kind: seconds_a_step(player, number) for kind, player in players.items()} for number in range(ROUNDS)
        ]
        for kind in players:
            figures[f"{name}_{kind}_us_a_step"] = 1e6 * statistics.median(one[kind] for one in rounds)
        for kind in players.keys() - {"text"}:
            added = statistics.median(one["text"] / one[kind] - 1 for one in rounds)
            figures[f"{name}_text_adds_to_{kind}"] = added
        for workers in ("inline", "thread", "process"):
            figures[f"{name}_{workers}_steps_per_s"] = asyncio.run(steps_per_s(id, kwargs, workers))
    record("stepping", figures)


def raw(name: str, kwargs: dict[str, Any]) -> dict[str, Player]:
    """What the words are put on."""
    if name.startswith("babyai"):
        level = RawLevel(kwargs["task"], "train", 0)
        return {"raw": gymnasium_player(level, range(6))}
    if name == "crafter":
        game, original = open_game(), crafter.Env()
        return {
            "raw": (game.begin, lambda action: game.step(action)[2], range(17)),
            "original": (lambda _: original.reset(), lambda action: bool(original.step(action)[2]), range(17)),
        }
    return {}


def gymnasium_player(environment: gymnasium.Env[Any, Any], actions: Sequence[Any]) -> Player:
    def step(action: Any) -> bool:
        _, _, terminated, truncated, _ = environment.step(action)
        return terminated or truncated

    return lambda seed: environment.reset(seed=seed), step, actions


def seconds_a_step(player: Player, number: int) -> float:
    reset, step, actions = player
    rng, seconds, over = random.Random(number), 0.0, True
    for turn in range(STEPS):
        if over:
            reset(derive("stepping", number, turn) % 2**32)  # more than Crafter as it is published can take
        action = rng.choice(actions)
        start = time.perf_counter()
        over = step(action)
        seconds += time.perf_counter() - start
    return seconds / STEPS


async def steps_per_s(id: str, kwargs: dict[str, Any], workers: str) -> float:
    """Of several environments together, resets included; the median over the rounds."""
    config = EnvironmentConfig(id=id, kwargs=kwargs, workers=workers, reward="native")  # type: ignore[arg-type]
    (task,) = config.tasks

    async def play(host: Host, rng: random.Random) -> None:
        over = True
        for _ in range(STEPS // SLOTS):
            if over:
                await host.reset(rng.randrange(2**32))
            feedback = await host.step(rng.choice(host.offer.actions))
            over = feedback.terminated or feedback.truncated

    with closing(Workers(config, SLOTS)) as pool:
        hosts = [Host(config, task, pool) for _ in range(SLOTS)]
        rates = []
        for number in range(ROUNDS):
            start = time.perf_counter()
            await asyncio.gather(*(play(host, random.Random(f"{number} {k}")) for k, host in enumerate(hosts)))
            rates.append(SLOTS * (STEPS // SLOTS) / (time.perf_counter() - start))
    return statistics.median(rates)


if __name__ == "__main__":
    main()
