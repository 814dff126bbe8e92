"""Recipes: keys in YAML files, read, overridden, checked and compared. Mistakes are ValueErrors of one sentence."""

from __future__ import annotations

import os
import re
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from turnwise.components import Component, fault, nearest
from turnwise.config import Config, Keys, RewardConfig

M = TypeVar("M", bound=BaseModel)


class _Loader(yaml.SafeLoader):
    """YAML 1.2: 1e-5 is a number, and no key stands twice in a group."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
        if twice := next((key for key in keys if keys.count(key) > 1), None):
            raise yaml.constructor.ConstructorError(problem=f"the key {twice} stands there twice")
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Writes what `_Loader` reads, texts such as 1e5 in quotes."""


for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
    )


def load_config(recipe: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a recipe (a path, or the name of a shipped one) and apply `dotted.key=value` overrides.

    Every mistake is a ValueError of one sentence.
    """
    path = find_shipped("recipe", recipe)
    tree = read_tree(path)
    override(tree, overrides)
    run = f"runs/{path.stem}" if tree.get("run") in (None, "") else tree["run"]
    config = parse_config({**tree, "run": os.path.expanduser(run) if isinstance(run, str) else run})
    if not says_what_is_played(config):
        raise ValueError(f"{path} does not say what is to be played; give it environment.id, or data.train")
    return config


def says_what_is_played(config: Config) -> bool:
    """Whether it names an environment or data; without, BabyAI stands there by default."""
    return config.data is not None or "id" in config.environment.model_fields_set


def read_tree(path: Path) -> dict[str, Any]:
    """The keys and values of a YAML file."""
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), _Loader) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as UTF-8 text: {error}") from error
    if not isinstance(tree, dict):
        raise ValueError(f"{path} must hold keys and values, such as `seed: 1`")
    return tree


def override(tree: dict[str, Any], overrides: Sequence[str]) -> None:
    """Set each `dotted.key=value` in a tree of keys; first those that choose a part, whose keys the others are."""

    def depth(text: str) -> int:  # advantage=grpo and advantage.use=grpo come before advantage.divide_by_std=false
        return text.partition("=")[0].removesuffix(".use").count(".")

    for text in sorted(overrides, key=depth):
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise ValueError(f"{text!r} is not an override; write it as dotted.key=value, such as update.epochs=2")
        _assign(tree, key, _scalar(text, value))


def parse_config(tree: Mapping[str, Any]) -> Config:
    """Validate a tree of keys; unknown keys are refused with the nearest valid one."""
    return parse(tree, Config)


def parse(tree: Mapping[str, Any], model: type[M]) -> M:
    """The same for any group of keys."""
    _refuse_unknown(tree, model)
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        raise ValueError(_sentence(error)) from error


def find_shipped(kind: Literal["recipe", "suite"], name: str | Path) -> Path:
    """A path as given, or what ships under a name."""
    path = Path(name)
    if path.is_file():
        return path
    shipped = {file.stem: file for file in sorted((Path(__file__).parent / f"{kind}s").glob("*.yaml"))}
    if str(name) in shipped:
        return shipped[str(name)]
    known = "neither a file, nor the folder of a run, nor a" if kind == "recipe" else "neither a file nor a"
    raise ValueError(f"{kind} {str(name)!r} is {known} shipped {kind}{nearest(str(name), shipped)}")


def dump_config(config: Config) -> str:
    """As YAML that reads back as the same configuration."""
    tree = config.model_dump(exclude={"warmup"} if config.model.critic == "none" else None)  # what is no choice
    try:
        return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    except yaml.YAMLError as error:  # given in Python
        raise ValueError(
            f"the configuration holds what no recipe can say ({' '.join(str(error).split())}); give texts, numbers, "
            "true, false, lists and groups of keys"
        ) from error


def tree_of(config: Config) -> dict[str, Any]:
    """Its keys and values, as they come back from a file."""
    return yaml.load(dump_config(config), _Loader)


def differences(before: Any, after: Any, path: str = "") -> list[str]:
    """`key was X, now is Y`, for each key that differs; where the run lies does not matter."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = [key for key in {**before, **after} if path or key != "run"]
        return [line for key in keys for line in differences(before.get(key), after.get(key), f"{path}.{key}")]
    return [] if before == after else [f"{path[1:]} was {before!r}, now is {after!r}"]


def _assign(tree: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, last = dotted.split(".")
    for parent in parents:
        group = tree.get(parent)
        if group is None or isinstance(group, str):  # nothing yet, or the name of a part without arguments
            group = {"use": group} if group else {}
        if not isinstance(group, dict):
            raise ValueError(f"cannot set {dotted}: {parent} is {group!r}, not a group of keys")
        tree[parent] = tree = group
    if last == "use" and tree.get("use", _default_use(parents)) != value:
        own = RewardConfig if parents == ["reward"] else Component
        for argument in tree.keys() - own.model_fields.keys():
            del tree[argument]
    tree[last] = value


def _default_use(parents: Sequence[str]) -> str | None:
    """The part in a place of the configuration where none is named."""
    field = Config.model_fields.get(".".join(parents))
    return getattr(field.default, "use", None) if field else None


def _scalar(override: str, text: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"{override!r}: the value is not YAML; quote it for the shell") from error


def _refuse_unknown(tree: Mapping[str, Any], model: type[BaseModel], path: str = "") -> None:
    for key, value in tree.items():
        field = model.model_fields.get(key)
        if field is None:
            raise ValueError(f"unknown key {path}{key}{nearest(str(key), model.model_fields, path)}")
        kind = field.annotation
        if get_origin(kind) in (Union, types.UnionType):
            if value is None and type(None) in get_args(kind):
                continue
            kind = next(part for part in get_args(kind) if part is not type(None))
        if isinstance(kind, type) and issubclass(kind, Keys):
            if not isinstance(value, Mapping):
                said = "null" if value is None else repr(value)
                raise ValueError(f"{path}{key} is {said}; it is a group of keys: {', '.join(kind.model_fields)}")
            _refuse_unknown(value, kind, f"{path}{key}.")


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ")
    key = ".".join(map(str, first["loc"]))
    if first["type"] == "value_error":
        return message
    if first["type"] == "missing":
        return f"{key} is missing"
    if first["type"] == "model_type":
        return fault(key, first["input"], "give a name, or a group of keys with `use`")
    return fault(key, first["input"], message)
