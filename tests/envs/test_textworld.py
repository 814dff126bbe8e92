"""TextWorld: games by seed, goals without the way to them, scores and ends. To make a game takes a second or two."""

import functools
import random

import numpy as np
import pytest

from turnwise.envs.textworld import TASKS, TextWorld

pytest.importorskip("textworld")
EASY = {"treasure_hunter": {"level": 2}, "coin_collector": {"level": 2}, "the_cooking_game": {"go": 1, "cook": False}}


@functools.cache
def first(task: str, seed: int) -> tuple[str, str]:
    env = TextWorld(task, **EASY[task])
    seen, _ = env.reset(seed=seed)
    env.close()
    assert env.observation_space.contains(seen)
    return seen["text"], seen["instructions"]


@pytest.mark.parametrize("task", TASKS)
def test_the_seed_decides_the_game(task):
    env = TextWorld(task, **EASY[task])
    random.seed(1)
    np.random.seed(1)
    again, _ = env.reset(seed=1)
    env.close()
    assert (again["text"], again["instructions"]) == first(task, 1) != first(task, 2)


def test_what_is_said_is_a_function_of_the_game_and_the_commands():
    def play() -> list:
        env = TextWorld("coin_collector", level=2)
        seen = [env.reset(seed=1)[0], *(env.step(said) for said in ("look", "inventory", "dance", "go north", "help"))]
        env.close()
        return seen

    assert play() == play()


def test_a_coin_that_is_taken_is_a_success():
    env = TextWorld("coin_collector", level=1)
    seen, _ = env.reset(seed=1)
    assert "coin" in seen["instructions"]
    assert ">" not in seen["text"]
    look, reward, terminated, truncated, info = env.step("look")
    assert (reward, terminated, truncated, info) == (0.0, False, False, {"success": False, "progression": 0.0})
    assert "coin" in look["text"]
    end, reward, terminated, truncated, info = env.step("take coin")
    assert (reward, terminated, truncated, info) == (1.0, True, False, {"success": True, "progression": 1.0})
    assert "The End" in end["text"]
    env.close()


def test_half_a_meal_is_progress_and_a_burnt_one_is_lost():
    env = TextWorld("the_cooking_game", go=1, recipe=1, take=1, cut=False, open=False)
    for seed in range(5):
        env.reset(seed=seed)
        env.step("examine cookbook")
        food = env._game.state["game"].metadata["ingredients"][0][0]
        taken = env.step(f"take {food}")
        if taken[1]:
            break
    assert taken[1:4] == (1.0, False, False)
    assert 0 < taken[4]["progression"] < 1
    assert not taken[4]["success"]
    *_, terminated, truncated, info = env.step(f"eat {food}")
    assert (terminated, truncated, info["success"]) == (True, False, False)
    env.close()


def test_a_limit_of_turns_truncates():
    env = TextWorld("coin_collector", level=1, max_turns=2)
    env.reset(seed=1)
    assert [env.step("look")[2:4] for _ in range(2)] == [(False, False), (False, True)]
    env.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": "coins"}, "task is 'coins' .*coin_collector"),
        ({"rooms": 3}, "a setting of treasure_hunter is 'rooms'"),
        ({"max_turns": 0}, "max_turns is 0"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, message):
    with pytest.raises(ValueError, match=message):
        TextWorld(**arguments)
