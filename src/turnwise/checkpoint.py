"""What must survive a crash, written so that a crash while writing loses nothing.

A checkpoint is a folder that appears by one rename, when every file in it is on disk. Weights and optimizer
moments are safetensors, the rest is JSON; each file's digest is kept, and checked before anything is read.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from turnwise.files import flush

_MANIFEST, _STATE = "manifest.json", "state.json"


def save(folder: Path, name: str, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> Path:
    """Write `tensors` (a file each) and `state` as the checkpoint `name`; returns its folder."""
    target, draft = folder / name, folder / f"{name}.draft"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    for stem, group in tensors.items():
        held = {key: tensor.detach().contiguous().cpu() for key, tensor in group.items()}
        try:
            save_file(held, draft / f"{stem}.safetensors")
        except SafetensorError as error:
            raise OSError(f"the checkpoint {target} cannot be written: {error}") from error
    (draft / _STATE).write_text(json.dumps(state))
    digests = {file.name: _digest(file) for file in sorted(draft.iterdir())}
    (draft / _MANIFEST).write_text(json.dumps(digests, indent=1))
    for file in draft.iterdir():
        flush(file)
    aside = folder / f"{name}.old"
    if target.exists():
        shutil.rmtree(aside, ignore_errors=True)
        target.rename(aside)
    draft.rename(target)
    flush(folder)
    shutil.rmtree(aside, ignore_errors=True)
    return target


def load(target: Path, only: str = "") -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Read a checkpoint back, with all its groups of tensors or `only` one, so that the others are not read.

    One that is damaged is a ValueError that names the file.
    """
    with _damage_told(target):
        files = _checked(target, (_STATE, f"{only}.safetensors") if only else ())
        state = json.loads((target / _STATE).read_text())
        return {file.stem: load_file(file) for file in files if file.suffix == ".safetensors"}, state


def _checked(target: Path, names: Sequence[str]) -> list[Path]:
    """The files of these names, or all, which are as they were written."""
    digests = json.loads((target / _MANIFEST).read_text())
    files = [target / name for name in names or digests]
    for file in files:
        if _digest(file) != digests.get(file.name):
            raise ValueError(f"its file {file.name} is damaged")
    return files


@contextmanager
def _damage_told(target: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:
        if not target.exists():
            raise ValueError(
                f"the checkpoint {target} is gone, as the run trains on and keeps its newest alone; ask again"
            ) from error
        raise ValueError(
            f"the checkpoint {target} cannot be read ({error}); delete that folder to resume from the one before it, "
            "or the whole run to begin anew"
        ) from error


def newest(folder: Path) -> Path | None:
    """The checkpoint made last; drafts that a crash left do not count."""
    return max(_finished(folder), key=_age, default=None)


def _finished(folder: Path) -> Iterator[Path]:
    """Checkpoints alone: file managers leave files of their own."""
    return (path for path in folder.glob("*") if path.is_dir() and path.suffix != ".draft")


def _age(path: Path) -> tuple[str, bool]:
    return path.stem, path.suffix != ".old"


def prune(folder: Path, keep: int) -> None:
    """Delete all but the newest, and drafts. Each is gone at once for those who read it meanwhile."""
    for path in (*folder.glob("*.draft"), *sorted(_finished(folder))[:-keep]):
        draft = path.with_name(f"{path.name.removesuffix('.draft')}.draft")
        path.rename(draft)
        shutil.rmtree(draft, ignore_errors=True)  # some file systems keep what is open


def load_parameters(module: torch.nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Overwrite what is trained in place, so that whoever shares the module sees the new weights."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(tensors[name])


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The moments of an optimizer as flat names; its settings come from the configuration."""
    state = optimizer.state_dict()["state"]
    return {f"{index}.{name}": tensor for index, moments in state.items() for name, tensor in moments.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        index, _, moment = name.partition(".")
        state.setdefault(int(index), {})[moment] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "blake2b").hexdigest()
