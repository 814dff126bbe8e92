"""Reasoning Gym: questions by seed, the data sets' own scores, and no answer that is run as code."""

import contextlib
import random

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from turnwise.envs.reasoning_gym import EVALUATING, HANGING, ReasoningGym

gym = pytest.importorskip("reasoning_gym")
OFFERED = sorted(set(gym.factory.DATASETS) - EVALUATING - HANGING)
SLOW = {"arc_agi", "futoshiki", "group_anagrams", "knight_swap", "quantum_lock", "word_ladder", "zebra_puzzles"}


def question(dataset: str, seed: int, **options) -> str:
    return ReasoningGym(dataset, **options).reset(seed=seed)[0]["text"]


def test_it_is_a_gymnasium_environment():
    check_env(ReasoningGym("chain_sum"), skip_render_check=True)


@pytest.mark.parametrize("dataset", [name for name in OFFERED if name not in SLOW])
def test_the_seed_decides_the_question_and_its_answer_is_right(dataset):
    env = ReasoningGym(dataset)
    random.seed(1)
    np.random.seed(1)
    first = env.reset(seed=1)[0]["text"]
    answer = env._entry["answer"]
    random.seed(2)
    np.random.seed(2)
    assert question(dataset, 1) == first
    assert len({first, *(env.reset(seed=seed)[0]["text"] for seed in (2, 3, 4))}) > 1
    env.reset(seed=1)
    if isinstance(answer, str):  # some are scored by what they achieve, and name no answer
        assert env.step(answer)[1:] == (1.0, True, False, {"success": True, "progression": 1.0})


def test_a_wrong_answer_ends_the_episode_too():
    env = ReasoningGym("chain_sum")
    env.reset(seed=1)
    assert env.step("I do not know")[1:] == (0.0, True, False, {"success": False, "progression": 0.0})


def test_an_answer_that_breaks_its_scorer_is_wrong(monkeypatch):
    env = ReasoningGym("chain_sum")
    env.reset(seed=1)
    monkeypatch.setattr(env._questions, "score_answer", lambda answer, entry: 1 / 0)
    assert env.step("1e400")[1:] == (0.0, True, False, {"success": False, "progression": 0.0})


@pytest.mark.parametrize("answer", ["nan", "NaN", "-nan", "1+nanj", "nan + 2j", "nanj"])
def test_what_is_no_number_is_near_no_number(answer):
    env = ReasoningGym("complex_arithmetic")
    env.reset(seed=1)
    assert env.step(answer)[1:] == (0.0, True, False, {"success": False, "progression": 0.0})


def test_a_score_that_is_no_number_is_none(monkeypatch):
    env = ReasoningGym("chain_sum")
    env.reset(seed=1)
    monkeypatch.setattr(env._questions, "score_answer", lambda answer, entry: float("nan"))
    assert env.step("7")[1:] == (0.0, True, False, {"success": False, "progression": 0.0})


def test_options_are_the_data_set_s_own():
    assert question("chain_sum", 1, min_terms=9, max_terms=9, min_digits=1, max_digits=1).count(" ") > 20


@pytest.mark.parametrize("dataset", OFFERED)
def test_no_answer_is_run_as_code(dataset, tmp_path):
    trace = tmp_path / "trace"
    env = ReasoningGym(dataset)
    env.reset(seed=1)
    for answer in (f"open('{trace}', 'w')", f"[open('{trace}', 'w')]", f'{{"a": open("{trace}", "w")}}'):
        env.step(answer)
        assert not trace.exists()


def test_the_data_sets_left_out_do_run_answers(tmp_path):
    for name in sorted(EVALUATING - {"composite"}):
        trace = tmp_path / name
        questions = gym.create_dataset(name, seed=1, size=1)
        with contextlib.suppress(Exception):
            questions.score_answer(f"open('{trace}', 'w')", questions[0])
        assert trace.exists(), f"{name} is safe by now and can be offered"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dataset": "chain_sums"}, "did you mean 'chain_sum'"),
        ({"dataset": "countdown"}, "'countdown', which runs the model's answer as code"),
        ({"dataset": "coin_flip"}, "'coin_flip', which takes hours to score some answers"),
        ({"dataset": "chain_sum", "min_terms": -1}, "chain_sum does not take the options .*min_terms"),
        ({"dataset": "chain_sum", "seed": 3}, "seed and size .* are chosen at each reset"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, message):
    with pytest.raises(ValueError, match=message):
        ReasoningGym(**arguments)
