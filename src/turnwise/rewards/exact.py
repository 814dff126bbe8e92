"""The answer, word for word."""

from collections.abc import Sequence
from typing import Any

from turnwise.rewards.replies import last_reply, part_after
from turnwise.types import Message


def exact_match(
    messages: Sequence[Message], ground_truth: Any, after: str = "", ignore_case: bool = False
) -> dict[str, float]:
    """1 if the last reply is the ground truth, or one of a list of them, white space around it aside; 0 if not.

    `after` marks the answer: only what follows its last occurrence is read.
    """
    if ground_truth is None:
        raise ValueError("the sample has no ground truth to compare with")
    said = _plain(part_after(last_reply(messages), after), ignore_case)
    truths = ground_truth if isinstance(ground_truth, list) else [ground_truth]
    right = said in [_plain(str(truth), ignore_case) for truth in truths]
    return {"score": float(right), "answered": float(said != "")}


def _plain(text: str, ignore_case: bool) -> str:
    return text.strip().casefold() if ignore_case else text.strip()
