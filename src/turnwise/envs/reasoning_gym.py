"""Questions of Reasoning Gym, one an episode (arXiv:2505.24760)."""

from __future__ import annotations

import math
import re
from typing import Any

import gymnasium

from turnwise.envs.phrases import FreeText, one_of, texts
from turnwise.optional import optional

# To score an answer, these run it as Python or have SymPy do so: a model could then run anything on this machine.
EVALUATING = {
    *("binary_matrix", "countdown", "intermediate_integration", "n_queens", "polynomial_multiplication", "puzzle24"),
    *("simple_integration", "spiral_matrix", "string_insertion"),
    "composite",  # which may hold any of them; mix data sets as tasks of the recipe
}
HANGING = {"coin_flip"}  # it writes 1e999999999 out in full, for hours in which no other thread runs
_NAN = re.compile(r"(?<![a-z])nan(?![a-ik-z])", re.IGNORECASE)  # or nanj, which is a complex number


class ReasoningGym(gymnasium.Env[dict[str, str], str]):
    """One question of a data set an episode; the answer ends it. `options` are the data set's own.

    Reward and progression are the score that the data set gives the answer, between 0 and 1; a score of 1 is success.
    The seed decides the question. Where a data set draws from a stock, as `arc_agi` does, different seeds may meet.
    """

    def __init__(self, dataset: str, **options: Any):
        self._gym = optional("reasoning_gym", "reasoning-gym")
        one_of("dataset", dataset, tuple(sorted(self._gym.factory.DATASETS)))
        if dataset in EVALUATING:
            raise ValueError(f"dataset is {dataset!r}, which runs the model's answer as code; choose another")
        if dataset in HANGING:
            raise ValueError(f"dataset is {dataset!r}, which takes hours to score some answers; choose another")
        if options.keys() & {"seed", "size"}:
            raise ValueError(f"seed and size of {dataset!r} are chosen at each reset; leave them out")
        self.dataset, self.options = dataset, options
        self.observation_space = texts("text")
        self.action_space = FreeText()
        self._draw(0)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, str], dict[str, Any]]:
        super().reset(seed=seed)
        self._draw(int(self.np_random.integers(2**31)))
        return {"text": self._entry["question"]}, {}

    def step(self, action: str) -> tuple[dict[str, str], float, bool, bool, dict[str, Any]]:
        try:
            score = float(self._questions.score_answer(action, self._entry))
        except Exception:  # no right answer breaks its scorer; were it a failure, wrong ones would not be counted
            score = math.nan
        # To be near nan is to be near everything, say the scorers that measure how far an answer is from the right one.
        strange = _NAN.search(action) and not _NAN.search(str(self._entry["answer"]))
        score = 0.0 if strange or math.isnan(score) else min(max(score, 0.0), 1.0)
        return {"text": "Thank you."}, score, True, False, {"success": score == 1, "progression": score}

    def _draw(self, seed: int) -> None:
        try:
            self._questions = self._gym.create_dataset(self.dataset, seed=seed, size=1, **self.options)
        except AssertionError as error:  # how its data sets refuse an option's value
            raise ValueError(f"{self.dataset} does not take the options {self.options}: {error}") from error
        self._entry = self._questions[0]
