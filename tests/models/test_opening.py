"""A model's folder that is not whole is refused in one sentence, and nothing in it is made up."""

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from turnwise.config import ModelConfig
from turnwise.models import EMBEDDED, open_model


def without_a_layer(folder: Path) -> None:
    weights = {name: one for name, one in load_file(folder / "model.safetensors").items() if "layers.1." not in name}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def with_other(file: str, old: str, new: str):
    return lambda folder: (folder / file).write_text((folder / file).read_text().replace(old, new))


def add_tokens(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([f"more{number}" for number in range(5000)])
    tokenizer.save_pretrained(folder)


DAMAGE = {
    "weights that stop half way": (
        lambda folder: (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:9000]),
        "not fully covered",
    ),
    "a layer without weights": (without_a_layer, "12 of its weights are not there, such as model.layers.1."),
    "a head of its own without weights": (
        with_other("config.json", '"tie_word_embeddings": true', '"tie_word_embeddings": false'),
        "1 of its weights are not there, such as lm_head.weight",
    ),
    "another architecture": (with_other("config.json", '"qwen2"', '"gpt2"'), "of its weights are not there"),
    "another size": (with_other("config.json", '"hidden_size": 256', '"hidden_size": 128'), "ignore_mismatched_sizes"),
    "a list for a configuration": (lambda folder: (folder / "config.json").write_text("[]"), "must be a mapping"),
    "more tokens than the model reads": (add_tokens, "tokens, and the model reads no more than"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "its tokenizer knows no letters"),
    "an empty tokenizer": (lambda folder: (folder / "tokenizer.json").write_text("{}"), "added_tokens"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_folder_is_refused(damage: str, tmp_path: Path) -> None:
    folder = shutil.copytree(EMBEDDED["tiny"], tmp_path / "model")
    do, why = DAMAGE[damage]
    do(folder)
    with pytest.raises(ValueError) as refused:
        open_model(ModelConfig(path=str(folder), device="cpu"))
    said = str(refused.value)
    assert why in said and str(folder) in said and "a folder with config.json" in said and "\n" not in said


@pytest.mark.parametrize("path", ["/nowhere/at/all", "./nowhere", "~/nowhere"])
def test_a_folder_that_is_not_there_is_not_looked_for_elsewhere(path: str) -> None:
    with pytest.raises(ValueError, match=f"model.path is '{path}', and there is no such folder"):
        open_model(ModelConfig(path=path, device="cpu"))
