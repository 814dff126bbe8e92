"""Made problems of arithmetic, too long to do in one's head and easy with a calculator, as rows in GSM8K's format.

A problem is a test problem by a hash of its numbers, so train and test never meet, whatever the seed or the size.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from turnwise.data.read import Row
from turnwise.seeds import derive

# Digits of each number, and what stands between them; `±` is drawn from plus and minus.
LEVELS: dict[int, tuple[tuple[int, ...], str]] = {
    1: ((2, 2), "±"),
    2: ((3, 3, 3, 3), "±±±"),
    3: ((3, 2), "*"),
    4: ((3, 2, 3, 2), "*±*"),
}
_PLACES = ("A shop", "A barn", "A school", "A ship")
_THINGS = (("boxes", "apples"), ("bags", "nuts"), ("crates", "eggs"), ("packs", "pens"))
_SHARES = {"train": 0.9, "test": 0.1}  # of all problems


@dataclass(frozen=True)
class Problem:
    numbers: tuple[int, ...]
    operators: tuple[str, ...]  # between the numbers: + - *

    @property
    def expression(self) -> str:
        return str(self.numbers[0]) + "".join(
            f" {sign} {number}" for sign, number in zip(self.operators, self.numbers[1:], strict=True)
        )

    def terms(self) -> list[tuple[str, list[int]]]:
        """Signs and factors: 3 - 4 * 5 is [("+", [3]), ("-", [4, 5])]."""
        terms = [("+", [self.numbers[0]])]
        for sign, number in zip(self.operators, self.numbers[1:], strict=True):
            if sign == "*":
                terms[-1][1].append(number)
            else:
                terms.append((sign, [number]))
        return terms

    def steps(self) -> list[tuple[str, int]]:
        """Calculations, each of two numbers, and their results: products first, then from left to right."""
        steps, values = [], []
        for sign, (first, *rest) in self.terms():
            for factor in rest:
                steps.append((f"{first} * {factor}", first := first * factor))
            values.append((sign, first))
        total = values[0][1]
        for sign, value in values[1:]:
            steps.append((f"{total} {sign} {value}", total := total + value if sign == "+" else total - value))
        return steps


@dataclass(frozen=True)
class Arithmetic:
    """`level` goes from 1 (two-digit sums) to 4 (sums of products); `style` is bare expressions or short stories."""

    level: int = 3
    style: Literal["expressions", "stories"] = "expressions"
    train: int = 4000  # rows
    test: int = 400
    seed: int = 0

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise ValueError(f"data.generate.level is {self.level!r}; there are {', '.join(map(str, LEVELS))}")
        if self.style not in ("expressions", "stories"):
            raise ValueError(f"data.generate.style is {self.style!r}; there are 'expressions' and 'stories'")
        for key in ("train", "test"):
            size, most = getattr(self, key), _most(self.level, key)
            if not isinstance(size, int) or not 1 <= size <= most:
                raise ValueError(
                    f"data.generate.{key} is {size!r}; at level {self.level} write a number from 1 to {most}"
                )

    def rows(self, split: Literal["train", "test"]) -> Iterator[Row]:
        """Different problems, with their solutions."""
        random = np.random.default_rng(derive("arithmetic", self.seed, self.level, split))
        wanted = self.train if split == "train" else self.test
        seen: set[Problem] = set()
        while len(seen) < wanted:
            problem = _draw(self.level, random)
            if problem in seen or _is_test(problem) != (split == "test") or not self._suits(problem):
                continue
            seen.add(problem)
            question = f"{problem.expression} = ?" if self.style == "expressions" else _story(problem, random)
            yield {"question": question, "answer": _solution(problem), "data_source": f"arithmetic/{self.level}"}

    def _suits(self, problem: Problem) -> bool:
        """No story can take away more than there is."""
        return self.style == "expressions" or all(value >= 0 for _, value in problem.steps())


def _most(level: int, split: str) -> int:
    """How many different problems may be asked for: half of those that there are, so that they are soon found."""
    digits, signs = LEVELS[level]
    return int(_SHARES[split] * math.prod(9 * 10 ** (count - 1) for count in digits) * 2 ** signs.count("±") / 2)


def _draw(level: int, random: np.random.Generator) -> Problem:
    digits, signs = LEVELS[level]
    numbers = tuple(int(random.integers(10 ** (count - 1), 10**count)) for count in digits)
    return Problem(numbers, tuple("+-"[random.integers(2)] if sign == "±" else sign for sign in signs))


def _is_test(problem: Problem) -> bool:
    return derive("arithmetic", problem.expression) < _SHARES["test"] * 2**62


def _story(problem: Problem, random: np.random.Generator) -> str:
    place = _PLACES[random.integers(len(_PLACES))]
    boxes, things = _THINGS[random.integers(len(_THINGS))]

    def told(factors: list[int]) -> str:
        return f"{factors[0]} {things}" if len(factors) == 1 else f"{factors[0]} {boxes} of {factors[1]} {things}"

    (_, first), *rest = problem.terms()
    changes = "".join(f" {told(factors)} {'come in' if sign == '+' else 'go out'}." for sign, factors in rest)
    return f"{place} has {told(first)}.{changes} How many {things} are there{' now' if rest else ''}?"


def _solution(problem: Problem) -> str:
    steps = problem.steps()
    lines = [f"{said} = <<{said.replace(' ', '')}={value}>>{value}" for said, value in steps]
    return "\n".join([*lines, f"#### {steps[-1][1]}"])
