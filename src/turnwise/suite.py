"""Plays a player, chance and the expert in several environments, and keeps what they did in a folder."""

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise.config import Config
from turnwise.envs.checked import try_environment
from turnwise.episodes import Episodes, Folder, Key, Record
from turnwise.evaluate import evaluate
from turnwise.players import Invite
from turnwise.recipe import find_shipped, override, parse_config, read_tree, says_what_is_played

Suite = Mapping[str, Config]  # environment -> what to play there


def load_suite(suite: str | Path, overrides: Sequence[str] = (), base: Mapping[str, Any] | None = None) -> Suite:
    """Read a suite: a YAML file, or a shipped one by name, of blocks `name: keys of a recipe`.

    Each block replaces those of the keys of `base` that it has. An override is for the block that its key begins
    with (`crafter.evaluation.episodes=3`), or else for all of them.
    """
    tree = read_tree(find_shipped("suite", suite))
    if not tree:
        raise ValueError(f"the suite {suite} is empty; give it blocks of the keys of a recipe, by name")
    configs = {}
    for name, block in tree.items():
        if not isinstance(block, dict):
            raise ValueError(f"{name} in the suite {suite} is {block!r}; it must be a group of keys, as in a recipe")
        keys = copy.deepcopy({**(base or {}), **block})  # blocks may share parts
        override(keys, [text for one in overrides if (text := _meant_for(name, one, tree))])
        try:
            configs[name] = parse_config(keys)
        except ValueError as error:
            raise ValueError(f"{name} in the suite {suite}: {error}") from error
        if not says_what_is_played(configs[name]):
            raise ValueError(f"{name} in the suite {suite} does not say what is to be played; give it environment.id")
    first = next(iter(configs.values()))
    if any(config.model != first.model for config in configs.values()):
        raise ValueError(f"the suite {suite} is played by one model, so its blocks cannot differ in keys of model")
    if any(config.rollout.history != first.rollout.history for config in configs.values()):
        raise ValueError(f"the suite {suite} is played by one model, so its blocks cannot differ in rollout.history")
    return configs


def _meant_for(name: str, text: str, names: Mapping[str, Any]) -> str | None:
    first, _, rest = text.partition(".")
    return rest if first == name else None if first in names else text


def split_missing(suite: Suite) -> tuple[Suite, dict[str, str]]:
    """What can be played here, and why the rest cannot: a package that it needs is not installed."""
    ready, missing = {}, {}
    for name, config in suite.items():
        if config.data is not None:
            raise ValueError(f"{name} in the suite has rows of data; suites are played in environments")
        try:
            for task in config.tasks:
                try_environment(config.environment, task)
            ready[name] = config
        except ValueError as error:
            if not isinstance(error.__cause__, ImportError):
                raise
            missing[name] = str(error)
    if not ready:
        raise ValueError(f"nothing can be played here: {'; '.join(missing.values())}")
    return ready, missing


def play_suite(
    suite: Suite,
    players: Mapping[str, Invite],
    folder: Folder | None,
    begin: Callable[[Key, int, int], object],
    finished: Callable[[], object],
    missed: Callable[[Key, str], object],
) -> Episodes:
    """The episodes of each player in each environment, in this order, those included that the folder holds already.

    The first player must be able to play everywhere; the others are left out where they cannot. `begin` hears whose
    turn it is, of how many episodes in all and how many are known; `finished` hears of each new one; `missed` hears
    who failed, and of what.
    """
    episodes = dict(folder.episodes) if folder else {}

    def keep(record: Record, text: str) -> None:
        if folder:
            folder.add(key, record, text)
        finished()

    for environment, config in suite.items():
        for name, invite in players.items():
            player, key = invite(config), (name, environment)
            if player is not None:
                known = episodes.get(key, [])
                begin(key, config.evaluation.episodes * len(config.tasks), len(known))
                try:
                    episodes[key] = evaluate(config, player, keep, known)
                except ValueError as error:
                    if name == next(iter(players)):
                        raise
                    episodes.pop(key, None)
                    missed(key, str(error))
            elif name == next(iter(players)) and config.data:
                raise ValueError(f"rows of data are played by models alone, and not by {name}")
            elif name == next(iter(players)):
                raise ValueError(f"{environment} cannot be played by {name}: the environment offers no such player")
    order = [(name, environment) for name in players for environment in suite]
    return {key: episodes[key] for key in [*order, *sorted(episodes.keys() - order)] if key in episodes}
