"""Numbers in text, read exactly and without eval: integers, decimals and fractions."""

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from turnwise.rewards.replies import last_reply, part_after
from turnwise.types import Message

_MINUS = "[-\N{MINUS SIGN}]"
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d+)"
# A minus after a digit, a letter or a bracket subtracts.
PLAIN = rf"(?:(?<![\w).]){_MINUS}\$?|\${_MINUS}?)?(?:{_DIGITS}(?:\.\d+)?|(?<!\d)\.\d+)"
_FRACTION = rf"(?:\\[dt]?frac\{{\s*({PLAIN})\s*\}}\{{\s*({PLAIN})\s*\}}|({PLAIN})(?:\s*/\s*({PLAIN}))?)"
_LONGEST = 1000  # digits; Python takes time quadratic in them


def to_number(text: str) -> Fraction | None:
    """The number that a text is, such as "-1,234.50", "$3", "3/4" or "\\frac{3}{4}"; None if it is none."""
    found = re.fullmatch(_FRACTION, text.strip().removesuffix("."))
    return _value(found) if found else None


def last_number(text: str) -> Fraction | None:
    """The last number in a text; a fraction is one number."""
    found = reversed(list(re.finditer(_FRACTION, text)))
    return next((value for value in map(_value, found) if value is not None), None)


def math_equal(messages: Sequence[Message], ground_truth: Any, after: str = "") -> dict[str, float]:
    """1 if the last number of the last reply equals the ground truth, 0 if not, exactly: 0.5 is 1/2.

    `after` marks the answer: only what follows its last occurrence is read.
    """
    truth = to_number(str(ground_truth))
    if truth is None:
        raise ValueError(f"the ground truth {ground_truth!r:.80} is no number; use exact_match")
    answer = last_number(part_after(last_reply(messages), after))
    return {"score": float(answer == truth), "answered": float(answer is not None)}


def _value(found: re.Match[str]) -> Fraction | None:
    above, below = found[1] or found[3], found[2] or found[4]
    if len(found[0]) > _LONGEST:
        return None
    top, bottom = _plain(above), _plain(below) if below else Fraction(1)
    return top / bottom if bottom else None


def _plain(digits: str) -> Fraction:
    return Fraction(digits.replace("\N{MINUS SIGN}", "-").replace(",", "").replace("$", ""))
