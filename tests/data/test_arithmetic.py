"""Made problems: right, hard enough, and never in both splits."""

import re

import pytest

from turnwise.data.arithmetic import LEVELS, Arithmetic, Problem
from turnwise.rewards.gsm8k import find_answer
from turnwise.tools.calculator import calculate

STYLES = ("expressions", "stories")


def questions(split, **arguments) -> list[str]:
    return [row["question"] for row in Arithmetic(**arguments).rows(split)]


@pytest.mark.parametrize("level", LEVELS)
def test_answers_are_those_of_the_calculator(level):
    for row in Arithmetic(level, train=50).rows("train"):
        expression = row["question"].removesuffix(" = ?")
        assert find_answer(row["answer"]) == calculate(expression)
        steps = re.findall(r"<<(.*?)=(-?\d+)>>", row["answer"])
        assert len(steps) == len(re.findall(r"[-+*]", expression))
        assert all(calculate(said) == int(value) for said, value in steps)


@pytest.mark.parametrize("level", LEVELS)
def test_stories_tell_all_numbers_and_never_go_below_nothing(level):
    for row in Arithmetic(level, "stories", train=50).rows("train"):
        told = re.findall(r"\d+", row["question"])
        used = re.findall(r"\d+", " ".join(re.findall(r"<<(.*?)=", row["answer"])))
        assert len(told) == len(LEVELS[level][0]) and set(told) <= set(used)
        assert min(int(value) for value in re.findall(r"=(-?\d+)>>", row["answer"])) >= 0


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("level", LEVELS)
def test_rows_differ_and_train_never_meets_test_whatever_the_seed(level, style):
    train = [questions("train", level=level, style=style, train=60, seed=seed) for seed in range(2)]
    test = [questions("test", level=level, style=style, test=10, seed=seed) for seed in range(2)]
    assert all(len(set(rows)) == len(rows) == size for size, group in ((60, train), (10, test)) for rows in group)
    assert not set().union(*train) & set().union(*test)
    assert train[0] != train[1]


def test_the_same_seed_makes_the_same_rows_and_more_rows_begin_with_them():
    assert questions("train", train=30) == questions("train", train=30) == questions("train", train=60)[:30]


def test_products_come_before_sums():
    problem = Problem((3, 4, 5, 6), ("-", "*", "+"))
    assert problem.expression == "3 - 4 * 5 + 6"
    assert problem.steps() == [("4 * 5", 20), ("3 - 20", -17), ("-17 + 6", -11)]


@pytest.mark.parametrize("style", STYLES)
def test_as_many_as_may_be_asked_for_are_found(style):
    assert len(questions("test", level=1, style=style, test=810)) == 810


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"level": 9}, "level is 9; there are 1, 2, 3, 4"),
        ({"style": "odd"}, "style is 'odd'"),
        ({"train": 0}, "train is 0"),
        ({"level": 1, "test": 811}, "test is 811; at level 1 write a number from 1 to 810"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        Arithmetic(**arguments)
