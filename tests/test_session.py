"""What an agent tells its session: numbers of any kind are kept as floats, and what is none is refused."""

import json
import math
from typing import Any

import numpy
import pytest
from helpers import Scripted, make_tokenizer, play_config

from turnwise.collector import Collector
from turnwise.protocols import Setting
from turnwise.render import Renderer
from turnwise.types import Action, Ending, Observation, Turn


class Earner:
    """Two turns that earn an amount each, as they are recorded and once more; and it is counted."""

    def __init__(self, setting: Setting, amount: float, kind: str):
        self.codec, self.amount = setting.codec, getattr(numpy, kind)(amount)

    async def run(self, session: Any) -> Ending:
        for _ in range(2):
            prompt = self.codec.prompt([{"role": "user", "content": "?"}])
            reply = await session.generate(prompt)
            session.count("coins", self.amount)
            action = Action("go", "valid", "go", "", 0)
            session.record(Turn(Observation(""), prompt, reply, action, 0, self.amount, "", "", ""))
            session.reward(self.amount)
        return Ending(())


def play(amount: float, kind: str) -> tuple[Collector, Turn]:
    renderer = Renderer(make_tokenizer())
    agent = {"use": f"{__name__}:Earner", "amount": amount, "kind": kind}
    config = play_config(agent=agent, rollout={"n_env": 1, "e_len": 1}, environment={"max_failures": 1})
    collector = Collector(config, renderer)
    (segment,) = collector.collect(Scripted(renderer, ["yes"]))
    return collector, segment.turns[0]


@pytest.mark.parametrize("kind", ["float32", "int64", "float64"])
def test_numbers_of_any_kind_can_be_saved(kind):
    collector, turn = play(2.0, kind)
    (slot,) = json.loads(json.dumps(collector.state()))
    assert (slot["episode"]["episode_return"], slot["episode"]["figures"]) == (4.0, {"coins": 2.0})
    assert json.dumps(turn.reward) == "4.0"


def test_a_figure_that_is_no_number_is_a_failure():
    with pytest.raises(ValueError, match=r"a figure 'coins' of np\.float64\(nan\); it must be a finite number"):
        play(math.nan, "float64")
