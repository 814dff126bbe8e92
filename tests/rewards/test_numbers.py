"""Numbers are read exactly, from whatever stands around them."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.rewards.exact import exact_match
from turnwise.rewards.gsm8k import find_answer, gsm8k
from turnwise.rewards.numbers import last_number, math_equal, to_number
from turnwise.types import Message

NUMBERS = [
    ("72", 72),
    (" -3 ", -3),
    ("\N{MINUS SIGN}3", -3),
    ("1,234,567", 1234567),
    ("$1,234.50", Fraction("1234.5")),
    ("-$5", -5),
    ("$-5", -5),
    (".5", Fraction(1, 2)),
    ("0.50", Fraction(1, 2)),
    ("18.", 18),
    ("007", 7),
]
FRACTIONS = [("3/4", Fraction(3, 4)), ("-3 / 4", Fraction(-3, 4)), (r"\frac{3}{4}", Fraction(3, 4)), ("10/5", 2)]


@pytest.mark.parametrize(("text", "value"), NUMBERS + FRACTIONS)
def test_numbers_in_every_spelling(text, value):
    assert to_number(text) == value
    assert last_number(f"first 99, then {text.strip()}") == value


@pytest.mark.parametrize(
    "text", ["", "five", "1 2", "--5", "1e999999999", "5/0", "3/", "$", "-", "1_000", "0x10", "nan"]
)
def test_what_is_not_one_number_is_none(text):
    assert to_number(text) is None


@given(st.fractions())
def test_a_fraction_comes_back_from_its_text(value):
    assert to_number(str(value)) == value
    assert last_number(f"so it is {value}.") == value


@given(st.text(st.sampled_from("0123456789.,$-/#\\frac{} \N{MINUS SIGN}")))
def test_no_text_breaks_the_readers(text):
    assert isinstance(last_number(text), Fraction | None)
    for method in ("strict", "flexible"):
        assert isinstance(find_answer(text, method), Fraction | None)


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("9" * 30_000, None),
        ("1 " * 15_000, 1),
        ("-" * 30_000, None),
        ("1,000" * 6_000, 1000),
        ("\\frac{" * 5_000, None),
        ("####" * 7_000, None),
    ],
)
def test_a_text_of_any_length_is_read(text, last):
    assert last_number(text) == last
    assert find_answer(text) is None


# -- gsm8k


@pytest.mark.parametrize(("text", "value"), NUMBERS)
def test_a_marked_number_is_the_answer(text, value):
    reply = f"It costs 99.\n#### {text.strip()} coins"
    assert find_answer(reply) == find_answer(reply, "flexible") == value


@pytest.mark.parametrize(
    ("text", "strict", "flexible"),
    [
        ("So 3 * 4 = 12", None, 12),
        ("#### 5\nNo!\n#### 7", 7, 7),
        ("#### 5 of 9", 5, 9),
        ("####5", 5, 5),
        ("####\n5", None, 5),
        ("### 5", None, 5),
        ("from 5-3", None, 3),
        ("x = -3.", None, -3),
        ("(2)-3", None, 3),
        ("nothing", None, None),
        ("", None, None),
    ],
)
def test_strict_needs_the_mark_and_flexible_takes_the_last_number(text, strict, flexible):
    assert (find_answer(text), find_answer(text, "flexible")) == (strict, flexible)


@pytest.mark.parametrize(
    ("text", "truth", "score", "answered"),
    [
        ("#### 1,234", "1234", 1, 1),
        ("#### 72.0", "72", 1, 1),
        ("#### 71", "72", 0.1, 1),
        ("72", "72", 0, 0),
        ("#### 72", 72, 1, 1),
    ],
)
def test_scores_of_gsm8k(text, truth, score, answered):
    assert gsm8k(text, truth, format_score=0.1) == {"score": score, "answered": answered}


@pytest.mark.parametrize("scorer", [lambda truth: gsm8k("5", truth), lambda truth: math_equal([], truth)])
def test_a_ground_truth_that_is_no_number_is_one_sentence(scorer):
    with pytest.raises(ValueError, match="the ground truth 'five' is no number"):
        scorer("five")


def test_an_unknown_method_is_one_sentence():
    with pytest.raises(ValueError, match="the method is 'loose'; there are"):
        gsm8k("5", "5", method="loose")  # type: ignore[arg-type]


# -- the last reply


def talk(*replies: str) -> list[Message]:
    messages: list[Message] = [{"role": "user", "content": "4? Or 5?"}]
    for reply in replies:
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": "4 is right!"}]
    return messages


@pytest.mark.parametrize(
    ("replies", "after", "truth", "score", "answered"),
    [
        (["it is 0.5"], "", "1/2", 1, 1),
        (["4", "5"], "", "4", 0, 1),  # what was said before, or by others, does not count
        (["THINK: 4. ACTION: 5"], "ACTION:", "5", 1, 1),
        (["5"], "ACTION:", "5", 0, 0),
        ([], "", "4", 0, 0),
        (["well"], "", "4", 0, 0),
    ],
)
def test_math_equal_reads_the_last_reply(replies, after, truth, score, answered):
    assert math_equal(talk(*replies), truth, after) == {"score": score, "answered": answered}


@pytest.mark.parametrize(
    ("reply", "truth", "options", "score"),
    [
        (" Paris\n", "Paris", {}, 1),
        ("paris", "Paris", {}, 0),
        ("paris", "PARIS", {"ignore_case": True}, 1),
        ("<think>no</think> Paris", "Paris", {"after": "</think>"}, 1),
        ("Rome", ["Paris", "Rome"], {}, 1),
        ("5", 5, {}, 1),
        ("4 is right!", "Paris", {}, 0),
    ],
)
def test_exact_match_is_word_for_word(reply, truth, options, score):
    assert exact_match(talk("Rome?", reply), truth, **options) == {"score": score, "answered": 1}


def test_without_a_ground_truth_nothing_matches_it():
    with pytest.raises(ValueError, match="no ground truth"):
        exact_match(talk("Rome?", "None"), None)
