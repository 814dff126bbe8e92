"""Low-rank adapters (LoRA: Hu et al. 2021, arXiv:2106.09685) of peft: several over one frozen model."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from turnwise.components import nearest
from turnwise.config import LoRAConfig, ModelConfig
from turnwise.optional import optional
from turnwise.seeds import derive


def make_adapters(model: PreTrainedModel, config: ModelConfig, seed: int) -> "Adapters | None":
    """For the actor, and for a critic that is not one with it; None where all weights are trained."""
    names = ["actor", "critic"] if config.critic == "separate" else ["actor"]
    return None if config.lora is None else Adapters(model, names, config.lora, seed)


class Adapters:
    """Adapters by name in the linear layers of a model, which is changed in place; its own weights are frozen.

    The first is in use unless another is asked for. At first none of them changes anything.
    """

    def __init__(self, model: PreTrainedModel, names: Sequence[str], config: LoRAConfig, seed: int):
        """A target that the model does not have is a ValueError."""
        peft = optional("peft", "lora")
        known = sorted({path.rpartition(".")[2] for path, one in _linear(model)})
        for target in config.targets:
            if target not in known:
                raise ValueError(f"model.lora.targets names {target!r}{nearest(target, known)}")
        self._config = peft.LoraConfig(
            task_type="CAUSAL_LM",
            base_model_name_or_path=model.name_or_path,
            r=config.rank,
            lora_alpha=config.alpha,
            target_modules=config.targets or known,
        )
        model.requires_grad_(False)
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the second is not the first
            torch.manual_seed(derive("lora", seed))
            for name in names:
                peft.inject_adapter_in_model(self._config, model, adapter_name=name)
        self.model = model
        self.layers: dict[str, Any] = {
            path: one for path, one in model.named_modules() if isinstance(one, peft.tuners.lora.LoraLayer)
        }
        self._weights = {path: weight for path, weight in model.named_parameters() if ".lora_" in path}
        self._active: str | None = None
        self._use(names[0])

    def parameters(self, name: str) -> list[nn.Parameter]:
        return [weight for path, weight in self._weights.items() if f".{name}." in path]

    @contextmanager
    def use(self, name: str | None) -> Iterator[None]:
        """With this adapter alone; None: as the model was before there were any."""
        before = self._active
        self._use(name)
        try:
            yield
        finally:
            self._use(before)

    def checkpointed(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Contexts for a layer now, and for when the backward pass runs it again: with the adapter of now."""
        return nullcontext(), self.use(self._active)

    def merged(self, name: str) -> Mapping[str, Tensor]:
        """The model's weights with the adapter's added, named as in a model without any; each is made when read."""
        return _Merged(self, name)

    def save(self, name: str, folder: Path) -> None:
        """As peft does: an adapter of the model that `model.path` names."""
        folder.mkdir(parents=True, exist_ok=True)
        self._config.save_pretrained(folder)
        mine = {
            f"base_model.model.{path.replace(f'.{name}.', '.')}": weight.detach().contiguous().cpu()
            for path, weight in self._weights.items()
            if f".{name}." in path
        }
        save_file(mine, folder / "adapter_model.safetensors")

    def _use(self, name: str | None) -> None:
        if name == self._active:
            return  # peft takes milliseconds, and every layer whose activations are computed again asks
        for layer in self.layers.values():
            if name is None or self._active is None:
                layer.enable_adapters(name is not None)
            if name is not None:
                layer.set_adapter(name)
        for weight in self._weights.values():  # peft freezes what is not in use, but one backward pass is for all
            weight.requires_grad_(True)
        self._active = name


class _Merged(Mapping[str, Tensor]):
    """Never holds more than one merged weight, so that a large model fits once and not twice."""

    def __init__(self, adapters: Adapters, name: str):
        self._layers, self._name = adapters.layers, name
        self._frozen = {
            path.replace(".base_layer.", "."): weight
            for path, weight in adapters.model.state_dict().items()
            if ".lora_" not in path
        }

    def __getitem__(self, path: str) -> Tensor:
        weight, (module, _, kind) = self._frozen[path], path.rpartition(".")
        if kind != "weight" or module not in self._layers:
            return weight
        with torch.no_grad():
            return weight + self._layers[module].get_delta_weight(self._name).to(weight.dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self._frozen)

    def __len__(self) -> int:
        return len(self._frozen)


def _linear(model: PreTrainedModel) -> Iterator[tuple[str, nn.Linear]]:
    """All but the head."""
    head = model.get_output_embeddings()
    for path, one in model.named_modules():
        if isinstance(one, nn.Linear) and one is not head:
            yield path, one
