"""Scorers get what they ask for by name, and whatever they do wrong is one sentence."""

import asyncio
import time
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from turnwise.config import RewardConfig
from turnwise.recipe import parse_config
from turnwise.rewards import Reward, RewardFault, Score
from turnwise.types import Message, Sample

SAMPLE = Sample(3, ({"role": "user", "content": "2 + 2?"},), ground_truth="4", data_source="sums", extra={"level": 1})
MESSAGES: list[Message] = [*SAMPLE.prompt, {"role": "assistant", "content": "4"}]


def verls(data_source, solution_str, ground_truth, extra_info=None, bonus=0.0, **kwargs):
    assert (data_source, extra_info["level"], extra_info["index"]) == ("sums", 1, 3)
    assert kwargs == {}
    return {"score": float(solution_str == ground_truth) + bonus, "length": len(solution_str), "pred": solution_str}


def ours(sample, messages, text):
    return len(messages) + len(text) if sample is SAMPLE else -1


async def patient(text):
    await asyncio.sleep(0)
    return text == "4"


class Judge:
    def __init__(self, strictness: float = 1.0):
        self.strictness = strictness

    async def __call__(self, text):
        return self.strictness


def raises():
    raise KeyError("a\nkey")


def leaves():
    raise SystemExit(3)


def sleeps():
    time.sleep(5)


def says(answer):
    return ANSWERS[answer]


ANSWERS: dict[str, Any] = {
    "fraction": Fraction(1, 4),
    "numpy": np.float32(0.25),
    "dict": {"score": True, "figure": 3},
    "nan": float("nan"),
    "infinite": {"score": float("inf")},
    "huge": 10**400,
    "without text": 10**5000,
    "figure without text": {"score": 1, "figure": 10**5000},
    "text": "1.0",
    "none": None,
    "list": [1.0],
    "no score": {"figure": 1},
    "bad figure": {"score": 1, "figure": float("nan")},
}


def score(function: str, text: str = "4", timeout_s: float = 30.0, **arguments: Any) -> Score:
    config = RewardConfig.model_validate({"use": f"{__name__}:{function}", "timeout_s": timeout_s, **arguments})
    return asyncio.run(Reward(config).score(SAMPLE, MESSAGES, text))


def test_the_scorer_of_verl_runs_as_it_is():
    assert score("verls") == Score(1.0, {"length": 1.0})
    assert score("verls", "wrong", bonus=0.5) == Score(0.5, {"length": 5.0})


def test_a_scorer_gets_what_it_names():
    assert score("ours") == Score(3.0)


def test_scorers_may_be_async_or_objects():
    assert score("patient").value == 1
    assert score("Judge", strictness=0.3).value == 0.3


@pytest.mark.parametrize(("answer", "value"), [("fraction", 0.25), ("numpy", 0.25), ("dict", 1.0)])
def test_any_finite_number_is_a_score(answer, value):
    found = score("says", answer=answer)
    assert found.value == value and type(found.value) is float


@pytest.mark.parametrize("answer", sorted(ANSWERS.keys() - {"fraction", "numpy", "dict"}))
def test_what_is_no_finite_number_is_the_authors_mistake(answer):
    with pytest.raises(RewardFault, match=r"reward test_reward:says returned .*finite number"):
        score("says", answer=answer)


@pytest.mark.parametrize(
    ("function", "timeout_s", "words"),
    [
        ("raises", 30, "failed on sample 3: KeyError"),
        ("leaves", 30, "tried to exit"),
        ("sleeps", 0.05, "did not answer within 0.05 s"),
    ],
)
def test_a_scorer_that_fails_is_one_sentence(function, timeout_s, words):
    with pytest.raises(RewardFault, match=words) as caught:
        score(function, timeout_s=timeout_s)
    assert len(str(caught.value).splitlines()) == 1


# -- in a recipe


def recipe(**reward: Any) -> Any:
    data = {"generate": {"use": "arithmetic"}, "convert": {"use": "gsm8k"}}
    return parse_config({"agent": {"use": "tool"}, "data": data, "reward": reward})


def test_a_recipe_names_a_scorer_and_its_arguments():
    config = recipe(use="gsm8k", method="flexible", timeout_s=3)
    assert config.reward.timeout_s == 3 and config.reward.arguments == {"method": "flexible"}
    assert recipe(use=f"{__name__}:Judge", strictness=2).reward.bind("reward").strictness == 2


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        ({"use": "gsm9k"}, ["reward.use is 'gsm9k'", "did you mean 'gsm8k'", "module:Class"]),
        ({"use": "gsm8k", "metod": "strict"}, ["unknown key reward.metod", "did you mean 'method'"]),
        ({"use": "gsm8k", "ground_truth": "4"}, ["unknown key reward.ground_truth"]),
        ({"use": "gsm8k", "timeout_s": 0}, ["reward.timeout_s is 0"]),
        ({"use": f"{__name__}:says"}, ["asks for answer", "reward.answer", "solution_str"]),
        ({"use": f"{__name__}:verls", "other": 1}, ["unknown key reward.other"]),
        ({"use": f"{__name__}:SAMPLE"}, ["reward.use is", "no class"]),
    ],
)
def test_a_mistake_in_a_recipe_is_one_sentence(reward, words):
    with pytest.raises(ValueError) as caught:
        recipe(**reward)
    assert [word for word in words if word not in str(caught.value)] == [], caught.value
