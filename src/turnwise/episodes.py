"""Held-out episodes on record: one line each, appended as they finish, so that a killed evaluation can go on."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from turnwise import files
from turnwise.config import Config
from turnwise.data import fingerprint, load_data
from turnwise.recipe import differences


@dataclass(frozen=True)
class Record:
    """One episode of one player."""

    task: str
    number: int  # of the level among the held-out levels of the task
    seed: int  # of the level
    success: bool | None  # None where the environment does not tell
    progression: float | None  # 0 to 1, how much of the task was done; None where the environment does not tell
    episode_return: float  # native or binary, as the recipe says; penalties included
    turns: int
    valid: int | None  # turns whose action was valid or translated; None for players that speak no text
    invalid_texts: dict[str, int]  # what was said instead of an action, and how often
    failures: int  # environments that failed since the episode before, and whose levels were passed over
    figures: dict[str, float] = field(default_factory=dict)  # whatever else its agent or environment counted
    source: str = ""  # the `data_source` of a sample

    @property
    def part(self) -> str:
        """The name under which it is told: its sample's source, or else its task."""
        return self.source or self.task


Key = tuple[str, str]  # player and environment
Episodes = Mapping[Key, list[Record]]
_RECORD = TypeAdapter(Record)


@dataclass(frozen=True)
class Protocol:
    """What was played, and by whom."""

    player: str
    weights: str  # which ones, where a run can have several
    environments: dict[str, dict[str, Any]]  # name -> the keys that playing depends on


_PROTOCOL = TypeAdapter(Protocol)
_PLAYED = {"model", "environment", "agent", "memory", "parser", "rollout", "evaluation"}
_ANSWERED = _PLAYED | {"data", "reward", "agents"}  # where samples are answered


def protocol_of(player: str, weights: str, environments: Mapping[str, Config]) -> Protocol:
    return Protocol(player, weights, {name: _dump(config) for name, config in environments.items()})


def _dump(config: Config) -> dict[str, Any]:
    if config.data is None:
        return config.model_dump(mode="json", include=_PLAYED)
    samples = fingerprint(load_data(config.data).test)
    return {**config.model_dump(mode="json", include=_ANSWERED), "samples": samples}


class Folder:
    """
    protocol.json    what was asked for       results.json, .csv, .md    what came of it
    episodes.jsonl   one line an episode      transcripts/               every n-th of a model's, readable
    """

    def __init__(self, path: Path, protocol: Protocol):
        """Make the folder, or go on with one of the same protocol. What a kill left half written is taken away."""
        self.path = path
        self._file = path / "episodes.jsonl"
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"--out is {path}, which is no folder and cannot be made one ({error})") from error
        text = self._file.read_text() if self._file.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if whole:  # else nothing was played yet, by whomever
            changed = differences(asdict(read_protocol(path)), asdict(protocol))
            if changed:
                raise ValueError(
                    f"{path} holds the episodes of another player or configuration ({'; '.join(changed[:3])}); "
                    "give the same one, or another --out FOLDER"
                )
        try:
            files.write(path / "protocol.json", f"{json.dumps(asdict(protocol), indent=1)}\n".encode())
            files.write(self._file, whole.encode())
        except OSError as error:
            raise ValueError(f"--out is {path}, where nothing can be written ({error})") from error
        self.episodes = read_episodes(path)

    def add(self, key: Key, record: Record, text: str = "") -> None:
        if text:
            name = f"{key[1]}-{record.task}-{record.number:05}.txt".replace("/", "-")
            (self.path / "transcripts").mkdir(exist_ok=True)
            (self.path / "transcripts" / name).write_text(text, encoding="utf-8")
        with self._file.open("a") as stream:
            stream.write(_line(key, record))

    def finish(self, episodes: Episodes, results: Mapping[str, str]) -> None:
        """Put the lines in order, those of players that failed meanwhile last, and write the results, a file each."""
        others = {key: records for key, records in read_episodes(self.path).items() if key not in episodes}
        lines = [_line(key, record) for key, records in {**episodes, **others}.items() for record in records]
        files.write(self._file, "".join(lines).encode())
        for name, text in results.items():
            files.write(self.path / name, text.encode())


def read_protocol(path: Path) -> Protocol:
    try:
        return _PROTOCOL.validate_json((path / "protocol.json").read_bytes())
    except (OSError, ValidationError) as error:
        raise ValueError(
            f"{path} holds no evaluation; give a folder that turnwise eval PLAYER ... --out FOLDER has made"
        ) from error


def read_episodes(path: Path) -> dict[Key, list[Record]]:
    file = path / "episodes.jsonl"
    episodes: dict[Key, list[Record]] = {}
    levels = set[tuple[str, str, str, int]]()
    text = file.read_text() if file.exists() else ""
    for number, line in enumerate(text.split("\n")[:-1], 1):  # what follows the last one is half written
        try:
            told = json.loads(line)
            key = told.pop("player"), told.pop("environment")
            record = _RECORD.validate_python(told)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"line {number} of {file} is damaged; delete the line, and it is played again") from error
        if (level := (*key, record.task, record.number)) in levels:  # two evaluations have written at a time
            raise ValueError(f"line {number} of {file} has a level that an earlier line has; delete the line")
        levels.add(level)
        episodes.setdefault(key, []).append(record)
    return episodes


def _line(key: Key, record: Record) -> str:
    player, environment = key
    return json.dumps({"player": player, "environment": environment, **asdict(record)}) + "\n"
