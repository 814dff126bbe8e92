"""The folder of a run: what was asked for, what happened, what is needed to go on."""

import fcntl
import json
import platform
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from turnwise import checkpoint, files
from turnwise.config import Config
from turnwise.recipe import differences, dump_config, parse_config, read_tree, tree_of
from turnwise.tally import Transcript
from turnwise.types import Segment

_SEGMENTS = TypeAdapter(list[Segment])
# Keys, or groups of them, that may change while a run stands still: they decide neither what its weights and slots are
# nor what is played next, and its messages advise some of them.
_FREE = (
    *("update.micro_tokens", "update.gradient_checkpointing", "update.actor_lr", "update.critic_lr"),
    *("model.device", "model.precision", "rollout.max_prompt_tokens", "reward.timeout_s"),
    *("environment.timeout_s", "environment.max_failures", "environment.processes"),
    *("engine", "evaluation", "checkpoint", "log"),
)


class Run:
    """
    config.yaml     every key, resolved           metrics.jsonl   one line a step
    versions.json   what it was made with         transcripts/    one episode in so many, readable
    checkpoints/    to go on from                 model/          the trained policy, a Hugging Face folder
    traces.jsonl    what episodes did, and        mlflow.db       the same for MLflow, where the recipe wants them
    changes.txt     what was changed when         lock            held while somebody trains here
                    the run was resumed
    """

    def __init__(self, config: Config, resume: bool):
        """Checks that the folder can be used, and leaves it as it is."""
        self.folder = Path(config.run)
        self.checkpoints = self.folder / "checkpoints"
        self.metrics = self.folder / "metrics.jsonl"
        self._config, self._versions = self.folder / "config.yaml", self.folder / "versions.json"
        self.changes: list[str] = []  # since the run stood still
        if resume:
            if not self._config.is_file():
                raise ValueError(f"there is no run to resume in {self.folder}; start it without --resume")
            before, now = tree_of(parse_config(read_tree(self._config))), tree_of(config)
            differing = differences(before, now)
            free = [*_FREE, "steps"] if now["update"]["lr_schedule"] == "constant" else _FREE  # others know the length
            changed = [line for line in differing if not _is_of(line.split()[0], free)]
            if not changed and list(before["environment"]["tasks"]) != list(now["environment"]["tasks"]):
                changed = ["environment.tasks stood in another order, by which slots are dealt their tasks"]
            if changed:
                raise ValueError(
                    f"{self.folder} is a run of another configuration ({'; '.join(changed[:3])}); give the same one, "
                    f"or begin another run{self._with_its_model()}"
                )
            self.changes = differing
        elif checkpoint.newest(self.checkpoints) is not None:
            raise ValueError(f"{self.folder} holds a run already; go on with --resume, or choose another run=FOLDER")
        if not is_writable(self.folder):
            raise ValueError(f"run is {config.run!r}, where nothing can be written; choose another run=FOLDER")

    def _with_its_model(self) -> str:
        """How to begin where this one stands, if it was ended or stopped there."""
        model, newest = self.folder / "model" / "config.json", checkpoint.newest(self.checkpoints)
        if not model.is_file() or (newest is not None and model.stat().st_mtime < newest.stat().st_mtime):
            return ": run=FOLDER"
        return f" with what it learned: run=FOLDER model.path={model.parent} seed=N, another one, for other levels"

    def hold(self) -> None:
        """Make the folder, and keep other processes from writing to it as long as this one lives."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = (self.folder / "lock").open("w")
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            raise ValueError(
                f"another process is training in {self.folder}; wait for it, or choose another run=FOLDER"
            ) from error
        except OSError:  # a file system without locks
            pass

    def begin(self, config: Config, machine: Mapping[str, Any]) -> None:
        """Write down what was asked for and what it is made with: versions, and what of the `machine` computes."""
        (self.folder / "transcripts").mkdir(exist_ok=True)
        self._write_versions(_made_with(machine))
        files.write(self._config, dump_config(config).encode())

    def go_on(self, config: Config, machine: Mapping[str, Any]) -> None:
        """Write down what was changed meanwhile, in keys, packages and machine, and where."""
        now = _made_with(machine)
        before = json.loads(self._versions.read_bytes()) if self._versions.exists() else now
        self.changes += differences(before, {name: now.get(name) for name in before}, ".made with")
        self._write_versions(now)
        if self.changes:
            newest = checkpoint.newest(self.checkpoints)
            since = newest.stem if newest else "the start"
            with (self.folder / "changes.txt").open("a", encoding="utf-8") as stream:
                stream.writelines(f"from {since} on: {line}\n" for line in self.changes)
        if read_tree(self._config) != tree_of(config):
            files.write(self._config, dump_config(config).encode())

    def _write_versions(self, made_with: Mapping[str, Any]) -> None:
        files.write(self._versions, f"{json.dumps(made_with, indent=1)}\n".encode())

    def keep_model(self, write: Callable[[Path], object]) -> None:
        """Have `model` and, where there is one, `adapter` written to a folder, and take each from there when whole."""
        draft = self.folder / "draft"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        write(draft)
        for part in draft.iterdir():
            shutil.rmtree(self.folder / part.name, ignore_errors=True)
            part.rename(self.folder / part.name)
        draft.rmdir()

    def log(self, line: Mapping[str, Any]) -> None:
        with self.metrics.open("a") as stream:
            stream.write(json.dumps(line) + "\n")

    def forget_after(self, lines: int) -> None:
        """Cut metrics.jsonl back to what a checkpoint knows: the rest is about to happen again."""
        if self.metrics.exists():
            kept = self.metrics.read_text().splitlines(keepends=True)[:lines]
            files.write(self.metrics, "".join(kept).encode())

    def write(self, transcript: Transcript) -> None:
        task = transcript.task.replace("/", "-")  # Gymnasium has names such as ALE/Pong-v5
        name = f"slot{transcript.slot:03}-episode{transcript.episode:05}-{task}.txt"
        (self.folder / "transcripts" / name).write_text(transcript.text, encoding="utf-8")

    def keep_warmup(self, number: int, segments: list[Segment]) -> None:
        """A file a batch: a checkpoint does not hold them."""
        folder = self.folder / "warmup"
        folder.mkdir(exist_ok=True)
        files.write(folder / f"{number:05}.json", _SEGMENTS.dump_json(segments))

    def kept_warmup(self, batches: int) -> list[Segment]:
        segments: list[Segment] = []
        for number in range(batches):
            file = self.folder / "warmup" / f"{number:05}.json"
            try:
                segments += _SEGMENTS.validate_json(file.read_bytes())
            except (OSError, ValidationError) as error:
                raise ValueError(
                    f"{file}, a batch of the critic's warm-up, is missing or damaged; delete {self.folder} to begin "
                    "anew"
                ) from error
        return segments

    def save(self, name: str, tensors: Mapping[str, Any], state: Mapping[str, Any], keep: int) -> None:
        checkpoint.save(self.checkpoints, name, tensors, state)
        checkpoint.prune(self.checkpoints, keep)


def _made_with(machine: Mapping[str, Any]) -> dict[str, Any]:
    packages = ("turnwise", "torch", "transformers", "gymnasium", "minigrid", "numpy")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}, **machine}


def _is_of(key: str, groups: Sequence[str]) -> bool:
    """Whether it is one of these keys, or stands in one of these groups."""
    return any(f"{key}.".startswith(f"{group}.") for group in groups)


def is_writable(folder: Path) -> bool:
    """Whether there is such a folder, or one can be made, and files in it."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:  # to root, permissions alone say yes everywhere
        with tempfile.TemporaryFile(dir=there):
            return True
    except OSError:
        return False
