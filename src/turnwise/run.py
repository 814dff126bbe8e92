"""The folder of a run: what was asked for, what happened, what is needed to go on."""

import json
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from turnwise import checkpoint
from turnwise.config import Config, dump_config
from turnwise.rollout import Transcript


class Run:
    """
    config.yaml     every key, resolved           metrics.jsonl   one line a step
    versions.json   what it was made with         transcripts/    every n-th episode, readable
    checkpoints/    to go on from                 model/          the trained policy, a Hugging Face folder
    """

    def __init__(self, config: Config, resume: bool):
        self.folder = Path(config.run)
        self.checkpoints = self.folder / "checkpoints"
        self.metrics = self.folder / "metrics.jsonl"
        text = dump_config(config)
        known = self.folder / "config.yaml"
        if resume:
            if not known.is_file():
                raise ValueError(f"there is no run to resume in {self.folder}; start it without --resume")
            changed = _differences(yaml.safe_load(known.read_text()), yaml.safe_load(text))
            if changed:
                raise ValueError(
                    f"{self.folder} is a run of another configuration ({'; '.join(changed[:3])}); "
                    "give the same one, or another run=FOLDER"
                )
        elif known.exists():
            raise ValueError(f"{self.folder} holds a run already; go on with --resume, or choose another run=FOLDER")
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "transcripts").mkdir(exist_ok=True)
        if not resume:
            packages = ("turnwise", "torch", "transformers", "gymnasium", "minigrid", "numpy")
            made_with = {"python": platform.python_version(), **{name: version(name) for name in packages}}
            (self.folder / "versions.json").write_text(json.dumps(made_with, indent=1) + "\n")
            draft = self.folder / "config.yaml.draft"
            draft.write_text(text)
            draft.rename(known)  # whole or not at all

    def log(self, line: Mapping[str, Any]) -> None:
        with self.metrics.open("a") as stream:
            stream.write(json.dumps(line) + "\n")

    def forget_after(self, lines: int) -> None:
        """Cut metrics.jsonl back to what a checkpoint knows: the rest is about to happen again."""
        if self.metrics.exists():
            kept = self.metrics.read_text().splitlines(keepends=True)[:lines]
            self.metrics.write_text("".join(kept))

    def write(self, transcript: Transcript) -> None:
        name = f"slot{transcript.slot:03}-episode{transcript.episode:05}-{transcript.task}.txt"
        (self.folder / "transcripts" / name).write_text(transcript.text)

    def save(self, name: str, tensors: Mapping[str, Any], state: Mapping[str, Any], keep: int) -> None:
        checkpoint.save(self.checkpoints, name, tensors, state)
        checkpoint.prune(self.checkpoints, keep)


def _differences(before: Any, after: Any, path: str = "") -> list[str]:
    """`key was X, now is Y`, for each key that differs; where the run lies does not matter."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = [key for key in {**before, **after} if path or key != "run"]
        return [line for key in keys for line in _differences(before.get(key), after.get(key), f"{path}.{key}")]
    return [] if before == after else [f"{path[1:]} was {before!r}, now is {after!r}"]
