"""Simulated users from files and by name, in the spelling of verl."""

import asyncio
from uuid import uuid4

import pytest

from turnwise.interactions import BaseInteraction, Interactions, load_interactions
from turnwise.interactions.gsm8k import Gsm8kInteraction
from turnwise.interactions.scripted import Scripted


class WeatherInteraction(BaseInteraction):
    """As a class for verl is written."""

    def __init__(self, config: dict):
        super().__init__(config)
        self._instance_dict = {}

    async def start_interaction(self, instance_id=None, ground_truth=None, **kwargs):  # type: ignore[override]
        instance_id = str(uuid4())
        self._instance_dict[instance_id] = ground_truth
        return instance_id

    async def generate_response(self, instance_id, messages, **kwargs):  # type: ignore[override]
        score = await self.calculate_score(instance_id)
        return True, f"It was {self._instance_dict[instance_id]} in {kwargs['city']}.", score, {}

    async def calculate_score(self, instance_id, **kwargs):  # type: ignore[override]
        return 0.25

    async def finalize_interaction(self, instance_id, **kwargs):  # type: ignore[override]
        del self._instance_dict[instance_id]


FILE = """
interaction:
  - name: gsm8k
    class_name: "turnwise.interactions.gsm8k.Gsm8kInteraction"
    config: {timeout_s: 5}
  - class_name: test_interactions_load:WeatherInteraction
"""
SCRIPTED = "interaction: [{{class_name: turnwise.interactions.scripted.Scripted, config: {}}}]"
SOLVER = "interaction: [{{class_name: turnwise.interactions.gsm8k.Gsm8kInteraction, config: {}}}]"


@pytest.fixture
def load(tmp_path):
    def load(text):
        (tmp_path / "users.yaml").write_text(text)
        return load_interactions(tmp_path / "users.yaml")

    return load


def test_a_file_names_its_users(load):
    users = load(FILE)
    assert list(users.by_name) == ["gsm8k", "weather"]
    assert users.by_name["gsm8k"].timeout_s == 5


def test_a_user_written_for_verl_runs_as_it_is(load):
    users = load(FILE)

    async def episode():
        sample = {"name": "weather", "ground_truth": "drizzle", "city": "Oslo"}
        async with users.open("e1", sample) as dialogue:
            return await dialogue.reply([{"role": "assistant", "content": "sun"}])

    turn = asyncio.run(episode())
    assert (turn.done, turn.text, turn.reward, turn.error) == (True, "It was drizzle in Oslo.", 0.25, "")
    assert users.by_name["weather"]._instance_dict == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("interaction: [{class_name: x.Y, confg: {}}]", ["unknown key confg", "did you mean 'config'"]),
        ("interaction: [{}]", ["class_name"]),
        ("interaction: [3]", ["3", "class_name"]),
        ("interaction: [{class_name: builtins.dict}]", ["'builtins.dict'", "BaseInteraction"]),
        ("interactions: []", ["`interaction`"]),
        ("interaction: 3", ["list"]),
        ("interaction: [{class_name: turnwise.interactions.scripted.Scripted, config: 3}]", ["config", "is 3"]),
        (
            "interaction: [{class_name: turnwise.interactions.scripted.Scripted, config: {scrpt: []}}]",
            ["scrpt", "script"],
        ),
        (
            "interaction: [{class_name: turnwise.interactions.scripted.Scripted, config: {timeout_s: 0}}]",
            ["timeout_s is 0"],
        ),
        ("interaction: [{class_name: turnwise.interactions.hosted.HostedUser, config: {}}]", ["model is missing"]),
        (
            "interaction: [{class_name: turnwise.interactions.gsm8k.Gsm8kInteraction, config: {method: odd}}]",
            ["method is 'odd'", "strict"],
        ),
    ],
)
def test_a_mistake_in_a_file_is_one_sentence(load, text, words):
    with pytest.raises(ValueError) as caught:
        load(text)
    message = str(caught.value)
    assert "users.yaml" in message and len(message.splitlines()) == 1
    assert [word for word in words if word not in message] == [], message


def test_a_file_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(ValueError, match=r"none\.yaml does not exist"):
        load_interactions(tmp_path / "none.yaml")


def test_two_users_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two interactions are called 'scripted'"):
        Interactions([Scripted(), Scripted()])
    assert set(Interactions([Scripted(), Scripted({"name": "other"})]).by_name) == {"scripted", "other"}


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        ({}, ["interaction_kwargs.name", "None", "gsm8k, scripted"]),
        ({"name": ["gsm8k"]}, ["interaction_kwargs.name", "['gsm8k']"]),
        ({"name": "gsm9k"}, ["'gsm9k'", "did you mean 'gsm8k'"]),
        ({"name": "gsm8k", "truth": 1}, ["truth", "Gsm8kInteraction"]),
        ({"name": "gsm8k", "ground_truth": 1, "messages": []}, ["reserved"]),
    ],
)
def test_a_sample_that_names_what_is_not_there_is_one_sentence(sample, words):
    with pytest.raises(ValueError) as caught:
        Interactions([Gsm8kInteraction(), Scripted()]).open("e1", sample)
    assert [word for word in words if word not in str(caught.value)] == [], caught.value
