"""Weights on their way to servers: a folder of safetensors for each version."""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from weakref import WeakValueDictionary

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

_OURS = re.compile(r"\d{6,}(\.draft)?")  # the user's folder may hold what is not


class WeightsFolder:
    """Where servers find the newest weights, in the precision that they sample in; all must see the same path."""

    def __init__(self, folder: Path, kind: torch.dtype = torch.float32, model: PreTrainedModel | None = None):
        """Weights have the names that checkpoints of this `model` have; or those under which they come."""
        self.folder = folder.absolute()
        self._kind = kind
        self._model = model
        self.newest: Path | None = None

    def write(self, weights: Mapping[str, Tensor], version: int) -> Path:
        """A folder that appears by one rename, so that no server reads half of it. The one before it goes."""
        target, draft = self.folder / f"{version:06}", self.folder / f"{version:06}.draft"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        named = _untied(weights, self._kind)
        if self._model is not None:  # transformers has renamed some, and made one tensor of all experts
            named = {name: one.contiguous() for name, one in revert_weight_conversion(self._model, named).items()}
        try:
            save_file(named, draft / "model.safetensors", metadata={"format": "pt"})
        except SafetensorError as error:
            raise OSError(f"weights for servers cannot be written to {draft}: {error}") from error
        for old in self.folder.iterdir():
            if _OURS.fullmatch(old.name) and old != draft:
                shutil.rmtree(old)
        draft.rename(target)
        self.newest = target
        return target


def _untied(weights: Mapping[str, Tensor], kind: torch.dtype) -> dict[str, Tensor]:
    """Each tensor once: a head that is tied to the embeddings is known by their name."""
    kept: dict[str, Tensor] = {}
    # Weakly, since weights that are made when read are gone when others take their place in memory.
    seen: WeakValueDictionary[int, Tensor] = WeakValueDictionary()
    for name, tensor in weights.items():
        if tensor.data_ptr() not in seen:
            seen[tensor.data_ptr()] = tensor
            kept[name] = tensor.detach().to(kind).cpu().contiguous()
    return kept
