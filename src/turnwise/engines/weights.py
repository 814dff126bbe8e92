"""Weights on their way to servers: a folder of safetensors for each version."""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

_KEPT = 2  # a server may still be reading the last one while the next is written


class WeightsFolder:
    """Where servers find the newest weights; they must see the same path."""

    def __init__(self, folder: str = ""):
        """An empty `folder` is one that lasts as long as this process."""
        self._temporary = None if folder else tempfile.TemporaryDirectory(prefix="turnwise-weights-")
        self.folder = Path(self._temporary.name if self._temporary else folder).absolute()
        self.newest: Path | None = None

    def write(self, weights: Mapping[str, Tensor], version: int) -> Path:
        """A folder that appears by one rename, so that no server reads half of it."""
        target, draft = self.folder / f"{version:06}", self.folder / f"{version:06}.draft"
        for stale in (target, draft):
            shutil.rmtree(stale, ignore_errors=True)
        draft.mkdir(parents=True)
        save_file(_untied(weights), draft / "model.safetensors", metadata={"format": "pt"})
        draft.rename(target)
        for old in sorted(path for path in self.folder.glob("[0-9]*") if path.is_dir())[:-_KEPT]:
            shutil.rmtree(old)
        self.newest = target
        return target


def _untied(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor once: a head that is tied to the embeddings is known by their name."""
    seen: dict[int, str] = {}
    for name, tensor in weights.items():
        seen.setdefault(tensor.data_ptr(), name)
    return {name: weights[name].detach().cpu().contiguous() for name in seen.values()}
