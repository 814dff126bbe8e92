"""Grade-school problems whose answer is one number after `####` (GSM8K, arXiv:2110.14168)."""

import re
from fractions import Fraction
from typing import Any, Literal

from turnwise.rewards.numbers import PLAIN, to_number

_MARKED = re.compile(rf"####[ \t]*({PLAIN})")
_ANY = re.compile(PLAIN)
Method = Literal["strict", "flexible"]


def gsm8k(text: str, ground_truth: Any, method: Method = "strict", format_score: float = 0.0) -> dict[str, float]:
    """1 for the right answer, `format_score` for a wrong one, 0 for none.

    strict: the last number that stands after `####`. flexible: the last number anywhere in what the model said.
    """
    truth = to_number(str(ground_truth))
    if truth is None:
        raise ValueError(f"the ground truth {ground_truth!r:.80} is no number")
    answer = find_answer(text, method)
    score = 0.0 if answer is None else 1.0 if answer == truth else format_score
    return {"score": score, "answered": float(answer is not None)}


def find_answer(text: str, method: Method = "strict") -> Fraction | None:
    if method not in ("strict", "flexible"):
        raise ValueError(f"the method is {method!r}; there are 'strict' and 'flexible'")
    found = (_MARKED if method == "strict" else _ANY).findall(text)
    return to_number(found[-1]) if found else None
