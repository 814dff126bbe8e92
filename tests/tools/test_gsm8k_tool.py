"""The tool that tells whether an answer is right rewards getting better."""

import asyncio

import pytest

from turnwise.toolcalls import ToolCall
from turnwise.tools import Toolset
from turnwise.tools.gsm8k import Gsm8kTool


def test_asking_costs_unless_the_answer_got_better():
    async def play():
        sample = {"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": "72"}}}
        async with Toolset([Gsm8kTool()]).open("e", tools_kwargs=sample) as box:
            calls = [
                ToolCall("calc_gsm8k_reward", {"answer": said}, "ok", (0, 0)) for said in ("7", "#### 72", "72", "7")
            ]
            return [(await box.run([call]))[0] for call in calls]

    results = asyncio.run(play())
    assert [result.reward for result in results] == [-0.05, 0.0, -0.05, -0.05]
    assert [result.response.text for result in results][:2] == ["7 scores 0.", "#### 72 scores 1."]
    assert {result.status for result in results} == {"ok"}


def test_episodes_do_not_share_their_truths():
    tool = Gsm8kTool()

    async def ask(truth):
        sample = {"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": truth}}}
        async with Toolset([tool]).open(truth, tools_kwargs=sample) as box:
            await asyncio.sleep(0)
            (result,) = await box.run([ToolCall("calc_gsm8k_reward", {"answer": "2"}, "ok", (0, 0))])
            return result.response.text

    async def play():
        return await asyncio.gather(*map(ask, "123"))

    assert asyncio.run(play()) == ["2 scores 0.", "2 scores 1.", "2 scores 0."]


def test_a_sample_without_a_truth_cannot_be_scored():
    with pytest.raises(ValueError, match="create_kwargs has truth"):
        Toolset([Gsm8kTool()]).open("e", tools_kwargs={"calc_gsm8k_reward": {"create_kwargs": {"truth": 1}}})


def test_what_would_do_nothing_is_refused():
    with pytest.raises(ValueError, match="Gsm8kTool does not take method"):
        Gsm8kTool({"method": "strict", "retries": 1})
