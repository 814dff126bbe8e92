"""Simulated users from a YAML file, and the lending of one to an episode."""

import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from turnwise.calling import left_over
from turnwise.components import load_object, nearest, with_colon
from turnwise.interactions.base import BaseInteraction
from turnwise.interactions.dialogue import Dialogue
from turnwise.recipe import read_tree

_ENTRY = ("name", "class_name", "config")
_METHODS = ("start_interaction", "generate_response", "calculate_score", "finalize_interaction")


class Interactions:
    """The simulated users of a run, by name, which all episodes share."""

    def __init__(self, interactions: Iterable[BaseInteraction]):
        self.by_name: dict[str, BaseInteraction] = {}
        for interaction in interactions:
            if interaction.name in self.by_name:
                raise ValueError(f"two interactions are called {interaction.name!r}; give one of them a name")
            self.by_name[interaction.name] = interaction

    def open(self, episode: str, interaction_kwargs: Mapping[str, Any]) -> Dialogue:
        """The dialogue of one episode: `async with interactions.open("e1", sample.interaction_kwargs) as dialogue`.

        `name` says with whom, and may be left out where there is one alone. What nobody would see is a ValueError.
        """
        kwargs = dict(interaction_kwargs)
        name = kwargs.pop("name", next(iter(self.by_name)) if len(self.by_name) == 1 else None)
        if not isinstance(name, str) or name not in self.by_name:
            raise ValueError(f"interaction_kwargs.name of the sample is {name!r}{nearest(str(name), self.by_name)}")
        interaction = self.by_name[name]
        methods = [getattr(interaction, method) for method in _METHODS]
        unseen = set(kwargs).intersection(*(left_over(method, "interaction_kwargs", kwargs) for method in methods))
        if unseen or {"instance_id", "messages"} & kwargs.keys():
            raise ValueError(
                f"interaction_kwargs of the sample has {', '.join(sorted(unseen)) or 'a reserved name'}, which "
                f"no method of {type(interaction).__name__} takes"
            )
        return Dialogue(interaction, episode, kwargs)


def load_interactions(path: Path) -> Interactions:
    """Those of a file with a list under `interaction`; an entry has class_name, and maybe name and config."""
    if not path.is_file():
        raise ValueError(f"the interaction file {path} does not exist")
    tree = read_tree(path)
    entries = tree.get("interaction")
    if set(tree) != {"interaction"} or not isinstance(entries, list):
        raise ValueError(f"{path} must hold a list under `interaction`, and nothing else")
    try:
        return Interactions([_from_entry(entry) for entry in entries])
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _from_entry(entry: Any) -> BaseInteraction:
    if not isinstance(entry, Mapping):
        raise ValueError(f"an interaction is {entry!r:.80}; give it a class_name")
    for key in entry:
        if key not in _ENTRY:
            raise ValueError(f"unknown key {key}{nearest(str(key), _ENTRY)}")
    kind = load_object("class_name", with_colon(str(entry.get("class_name", ""))))
    if not (inspect.isclass(kind) and issubclass(kind, BaseInteraction)):
        raise ValueError(f"class_name is {entry['class_name']!r}, which does not extend BaseInteraction")
    config = entry.get("config") or {}
    if not isinstance(config, Mapping):
        raise ValueError(f"the config of {entry['class_name']} is {config!r:.80}; write keys and values")
    return kind({**config, **({"name": entry["name"]} if "name" in entry else {})})
