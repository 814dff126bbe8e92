"""Teaches how to use a calculator: it often does not, or types the wrong thing, or does not read the answer."""

import json
import random
from dataclasses import dataclass

from turnwise.components import Component
from turnwise.config import DataConfig
from turnwise.data import load_data
from turnwise.models.make_tiny import Demonstration
from turnwise.seeds import derive
from turnwise.tools import Toolset, load_tools
from turnwise.tools.calculator import calculate
from turnwise.types import Message, Sample


@dataclass(frozen=True)
class CalculatorTeacher:
    """Of its episodes it answers a share from its head, and so wrongly. In the others it calls the calculator, and
    makes mistakes in a share of the calls and of the answers that it copies.
    """

    episodes: int = 16_000
    levels: tuple[int, ...] = (1, 2, 3)
    from_head: float = 0.5
    mistyped: float = 0.3
    misread: float = 0.2

    def demonstrations(self, seed: int) -> list[Demonstration]:
        rng = random.Random(derive("calculator teacher", seed))
        tools = Toolset(load_tools(["turnwise.tools.calculator:calculator"])).open("demonstration").schemas
        samples = [sample for level in self.levels for sample in _samples(level, self.episodes // len(self.levels))]
        shown: list[Demonstration] = []
        for sample in samples:
            truth = str(sample.ground_truth)
            prompt: list[Message] = list(sample.prompt)
            if rng.random() < self.from_head:
                shown.append(Demonstration(prompt, f"#### {_guess(truth, rng)}", tools))
                continue
            typed = str(sample.extra["question"]).removesuffix(" = ?")
            if rng.random() < self.mistyped:
                typed = _slip(typed, rng)
            call = (
                f"<tool_call>\n{json.dumps({'name': 'calculator', 'arguments': {'expression': typed}})}\n</tool_call>"
            )
            result = str(calculate(typed))
            said: list[Message] = [{"role": "assistant", "content": call}, {"role": "tool", "content": result}]
            answer = _slip(result, rng) if rng.random() < self.misread else result
            shown += [
                Demonstration(prompt, call, tools),
                Demonstration([*prompt, *said], f"#### {answer}", tools),
            ]
        return shown


def _samples(level: int, count: int) -> tuple[Sample, ...]:
    generate = Component.model_validate({"use": "arithmetic", "level": level, "train": count, "test": 1, "seed": 1})
    return load_data(DataConfig(generate=generate, convert=Component(use="gsm8k"))).train


def _guess(truth: str, rng: random.Random) -> str:
    """A number of the right length."""
    digits = truth.removeprefix("-")
    sign = truth[: len(truth) - len(digits)]
    return sign + str(rng.randrange(10 ** (len(digits) - 1), 10 ** len(digits)))


def _slip(text: str, rng: random.Random) -> str:
    """The same with one digit wrong, none of them the first of its number, lest it begin with a zero."""
    places = [place for place in range(1, len(text)) if text[place].isdigit() and text[place - 1].isdigit()]
    if not places:
        return text
    place = rng.choice(places)
    return text[:place] + rng.choice([digit for digit in "0123456789" if digit != text[place]]) + text[place + 1 :]
