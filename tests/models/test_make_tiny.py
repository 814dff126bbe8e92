"""What is written as a model opens as the model that was trained."""

import json
from dataclasses import replace

import pytest
import torch

from turnwise.config import ModelConfig
from turnwise.models import make_tiny as make_tiny_module
from turnwise.models import open_model
from turnwise.models.make_tiny import Recipe, make_model, make_tiny, make_tokenizer
from turnwise.models.teach_babyai import BabyAITeacher

TEACHER = BabyAITeacher(turns={"goto": 40}, questions=20)
SMALL = Recipe(epochs=2, batch=10, vocabulary=300, width=32, layers=1, heads=2)


def test_a_model_that_is_opened_again_has_the_tokens_it_was_taught_with(tmp_path):
    said: list[object] = []
    make_tiny(tmp_path, TEACHER, SMALL, said.append)
    assert "60 demonstrated turns" in said
    shown = TEACHER.demonstrations(SMALL.seed)
    taught = make_tokenizer(shown, SMALL.vocabulary)
    _, opened = open_model(ModelConfig(path=str(tmp_path)))
    assert len(opened) == len(taught)
    for one in shown:
        text = opened.apply_chat_template(list(one.messages), tokenize=False)
        for part in (str(text), one.reply):
            ids = opened.encode(part, add_special_tokens=False)
            assert ids == taught.encode(part, add_special_tokens=False)
            assert opened.decode(ids) == part
    made_by = json.loads((tmp_path / "made_by.json").read_text())
    assert (made_by["teacher"], made_by["questions"], made_by["heads"]) == ("BabyAITeacher", 20, 2)


def test_a_digit_and_the_space_before_it_are_one_token():
    tokenizer = make_tokenizer(TEACHER.demonstrations(0), SMALL.vocabulary)
    for digit in range(10):
        assert len(tokenizer.encode(f" {digit}", add_special_tokens=False)) == 1


def test_the_same_seed_makes_the_same_model(tmp_path):
    weights = []
    for name in ("one", "other"):
        make_tiny(tmp_path / name, TEACHER, SMALL, lambda _: None)
        weights.append(open_model(ModelConfig(path=str(tmp_path / name)))[0].state_dict())
    assert all(torch.equal(weight, weights[1][name]) for name, weight in weights[0].items())


def test_what_is_shown_is_learned(tmp_path):
    losses: list[float] = []

    def hear(said: object) -> None:
        if str(said).startswith("step"):
            losses.append(float(str(said).split()[2]))

    make_tiny(tmp_path, TEACHER, replace(SMALL, epochs=34), hear)
    assert len(losses) == 4
    assert losses[-1] < 0.6 * losses[0]


def test_what_is_to_be_learned_first_is_learned_before_the_rest(tmp_path, monkeypatch):
    """And by itself, in every epoch."""
    taught: list[int] = []
    real = make_tiny_module.minibatches

    def watch(rows, batch, *rest):
        taught.append(len(rows))
        return real(rows, batch, *rest)

    monkeypatch.setattr(make_tiny_module, "minibatches", watch)
    make_tiny(tmp_path, TEACHER, replace(SMALL, lead=45), lambda _: None)
    assert taught == [45, 15, 45, 15]


def test_heads_begin_by_looking_a_few_tokens_back():
    """Each at its own distance, whatever the tokens are; those that are left look everywhere."""
    tokenizer = make_tokenizer(TEACHER.demonstrations(0), SMALL.vocabulary)
    model = make_model(tokenizer, replace(SMALL, width=256, heads=8, look_back=6))
    model.set_attn_implementation("eager")
    ids = torch.randint(0, len(tokenizer), (4, 60), generator=torch.Generator().manual_seed(0))
    shares = model(ids, output_attentions=True).attentions[0]
    back = [shares[:, n].diagonal(-n - 1, 1, 2)[:, 6:].mean().item() for n in range(8)]
    assert min(back[:6]) > 0.8 and max(back[6:]) < 0.2
    with pytest.raises(ValueError, match="look_back is 9, but a layer has 8 heads"):
        make_model(tokenizer, replace(SMALL, width=256, heads=8, look_back=9))


def test_layers_begin_by_adding_little_to_what_a_token_is():
    tokenizer = make_tokenizer(TEACHER.demonstrations(0), SMALL.vocabulary)
    ids = torch.arange(200)[None]

    def kept(quiet: float) -> float:
        model = make_model(tokenizer, replace(SMALL, quiet=quiet))
        states = model(ids, output_hidden_states=True).hidden_states
        return torch.cosine_similarity(states[-1], states[0], -1).mean().item()

    assert kept(1.0) < 0.6 and kept(0.05) > 0.9
