"""Rows of GSM8K become samples that tools, users and scorers can work with."""

import asyncio
from dataclasses import asdict

import pytest

from turnwise.config import RewardConfig
from turnwise.data.gsm8k import Gsm8k
from turnwise.data.samples import to_sample
from turnwise.interactions import Interactions
from turnwise.interactions.gsm8k import Gsm8kInteraction
from turnwise.rewards import Reward
from turnwise.tools import Toolset
from turnwise.tools.calculator import calculator
from turnwise.tools.gsm8k import Gsm8kTool

ROW = {
    "question": "Ann has 1,000 coins and finds 2 * 117 more. How many?",
    "answer": "She finds 2 * 117 = <<2*117=234>>234.\nShe has 1000 + 234 = <<1000+234=1234>>1,234.\n#### 1,234",
}


def sample(**arguments):
    return to_sample("row 1", Gsm8k(**arguments)(ROW, 3, "train"), 3)


def test_the_row_has_the_shape_of_verls_example():
    row = Gsm8k("calc_gsm8k_reward")(ROW, 3, "train")
    assert [message["role"] for message in row["prompt"]] == ["system", "user"]
    assert "calc_gsm8k_reward" in row["prompt"][0]["content"] and "####" in row["prompt"][0]["content"]
    assert row["prompt"][1]["content"] == ROW["question"]
    assert row["reward_model"] == {"style": "rule", "ground_truth": "1234"}
    assert (row["data_source"], row["agent_name"], row["ability"]) == ("openai/gsm8k", "tool_agent", "math")
    assert row["extra_info"] == {
        "split": "train",
        "index": 3,
        **ROW,
        "need_tools_kwargs": True,
        "tools_kwargs": {"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": "1234"}}},
    }


def test_only_the_tool_that_scores_is_told_the_truth():
    assert "1234" not in str(sample(tool="calculator").tools_kwargs)
    assert "1234" in str(sample(tool="calc_gsm8k_reward").tools_kwargs)
    assert sample(tool=None).tools == ()


@pytest.mark.parametrize(
    ("tool", "interaction", "agent"),
    [("calculator", "", "tool_agent"), (None, "gsm8k", "tool_agent"), (None, "", "single_turn_agent")],
)
def test_who_has_tools_or_a_user_to_talk_to_is_played_with_them(tool, interaction, agent):
    assert sample(tool=tool, interaction=interaction).agent == agent


@pytest.mark.parametrize("tool", ["calculator", "calc_gsm8k_reward", None])
def test_the_sample_opens_its_tools(tool):
    found = sample(tool=tool)
    box = Toolset([calculator, Gsm8kTool()]).open("e", found.tools, found.tools_kwargs)
    assert [schema["function"]["name"] for schema in box.schemas] == ([tool] if tool else [])


def test_the_sample_opens_its_dialogue():
    async def play():
        found = sample(interaction="gsm8k")
        async with Interactions([Gsm8kInteraction()]).open("e", found.interaction_kwargs) as dialogue:
            return [await dialogue.reply([{"role": "assistant", "content": said}]) for said in ("#### 3", "#### 1234")]

    wrong, right = asyncio.run(play())
    assert (wrong.done, wrong.reward, right.done, right.reward) == (False, 0, True, 1)


def test_the_datas_own_solution_scores_one():
    reward = Reward(RewardConfig(use="gsm8k"))
    assert asyncio.run(reward.score(sample(), [], ROW["answer"])).value == 1


def test_a_system_message_of_ones_own_replaces_ours():
    assert sample(system="Go!").prompt[0] == {"role": "system", "content": "Go!"}
    assert asdict(sample())["extra"]["question"] == ROW["question"]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"question": "a"}, "column answer is None"),
        ({**ROW, "answer": "so 5"}, "does not end in ####"),
        ({**ROW, "answer": "#### five"}, "does not end in ####"),
    ],
)
def test_a_row_of_another_kind_is_one_sentence(row, words):
    with pytest.raises(ValueError, match=words):
        Gsm8k()(row, 0, "train")


def test_an_unknown_tool_is_one_sentence():
    with pytest.raises(ValueError, match=r"data\.convert\.tool is 'abacus'; there are calculator"):
        Gsm8k(tool="abacus")  # type: ignore[arg-type]
