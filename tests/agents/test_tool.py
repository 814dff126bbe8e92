"""Agents on samples: what is said, what is recorded, and what comes of tools and users that misbehave."""

import asyncio
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from helpers import Scripted, make_tokenizer
from sums import HERMES, call

from turnwise.batch import pack
from turnwise.collector import Collector
from turnwise.config import Config
from turnwise.engines.local import LocalEngine
from turnwise.evaluate import evaluate
from turnwise.interactions import BaseInteraction
from turnwise.players import Model
from turnwise.recipe import parse_config
from turnwise.render import Renderer
from turnwise.tools import BaseTool, ToolResponse, function_tool
from turnwise.types import Segment


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(make_tokenizer(HERMES))


@function_tool
async def sleep() -> str:
    """Sleep for ever."""
    await asyncio.sleep(3600)
    return "awake"


@function_tool
def fail() -> str:
    """Raise."""
    raise RuntimeError("the disk is full")


@function_tool
def shout() -> str:
    """Say very much."""
    return "a" * 10_000_000


@function_tool
def bribe() -> tuple[str, float]:
    """Give a reward that is no number."""
    return "here", float("nan")


@function_tool
def photograph() -> ToolResponse:
    """Make a picture."""
    return ToolResponse("Done.", image=[b"png"])


@function_tool
def pay(amount: float) -> tuple[str, float]:
    """Give a reward.

    Args:
        amount: How much.
    """
    return "paid", amount


def config(
    *tools: str, extra: dict[str, Any] | None = None, rollout: dict[str, Any] | None = None, **tree: Any
) -> Config:
    agent = {"use": "tool", "tools": [f"{__name__}:{tool}" for tool in tools] or ["sums:add"], **tree.pop("agent", {})}
    return parse_config(
        {
            "agent": agent,
            "data": {"generate": {"use": "sums:Rows", "extra": extra or {}}},
            "reward": {"use": "gsm8k"},
            "rollout": {"n_env": 1, "episodes": 1, "max_prompt_tokens": 4000, **(rollout or {})},
            "update": {"minibatch": 1},
            **tree,
        }
    )


def play(renderer: Renderer, replies: Any, *tools: str, **tree: Any) -> tuple[list[Segment], Scripted, Collector]:
    collector, engine = Collector(config(*tools, **tree), renderer), Scripted(renderer, replies)
    return collector.collect(engine), engine, collector


def test_a_call_is_answered_and_the_answer_judged(renderer):
    def reply(prompt: str, _: int) -> str:
        question = int(prompt.split("What is ")[1].split()[0])
        if "<tool_response>" not in prompt:
            return f"Let me see. {call('add', a=question, b=1)}"
        return f"#### {prompt.split('<tool_response>')[1].split('</tool_response>')[0].strip()}"

    ((segment,), engine, collector) = play(renderer, reply)
    assert (len(segment.turns), segment.end) == (2, "terminated")
    assert [turn.reward for turn in segment.turns] == [0.0, 1.0]
    outcome = segment.outcome
    assert outcome and (outcome.success, outcome.episode_return, outcome.turns, outcome.progression) == (
        True,
        1.0,
        2,
        1.0,
    )
    figures = {name: value for name, value in outcome.figures.items() if not name.startswith("tokenization")}
    assert figures == {"tools/ok": 1.0, "reward/answered": 1.0}
    assert '"name": "add"' in engine.prompts[0]
    assert collector.tally.failures == 0
    batch = pack([segment])
    assert len(batch.row_lengths) == 1  # the second prompt extends the first and the reply to it
    assert segment.turns[1].prompt_ids[: len(segment.turns[0].prompt_ids)] == segment.turns[0].prompt_ids
    assert segment.turns[0].action and segment.turns[0].action.status == "valid"


def in_parts(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any) -> float:
    """All of them earned, which in floating point is a little less than 1."""
    return 0.7 + 0.2 + 0.1


def test_a_reward_of_parts_is_a_success_where_all_were_earned(renderer):
    ((segment,), *_) = play(renderer, ["#### 7"], reward={"use": f"{__name__}:in_parts"})
    assert in_parts("", "", "", {}) < 1
    assert segment.outcome and segment.outcome.success is True


def test_a_wrong_answer_is_no_success(renderer):
    ((segment,), *_) = play(renderer, ["#### 7"])
    outcome = segment.outcome
    assert outcome and (outcome.success, outcome.episode_return, outcome.progression) == (False, 0.0, 0.0)
    assert len(segment.turns) == 1


def test_every_sample_is_drawn_once_an_epoch_and_a_group_shares_its_sample(renderer):
    made = config(rollout={"n_env": 8, "group": 2})
    collector, engine = Collector(made, renderer), Scripted(renderer, ["#### 7"])
    for _ in range(2):
        collector.collect(engine)
    asked = [int(prompt.split("What is ")[1].split()[0]) for prompt in engine.prompts]
    assert sorted(asked) == [n for n in range(10, 18) for _ in range(2)]


@pytest.mark.parametrize(
    ("tool", "status", "said"),
    [
        (call("sleep"), "timeout", "did not answer within"),
        (call("fail"), "tool_error", "fail failed: RuntimeError: the disk is full"),
        (call("shout"), "ok", "(truncated)"),
        (call("nothing"), "unknown_tool", "There is no tool 'nothing'. Available tools: fail, shout"),
        (call("fail", more=1), "invalid_arguments", "The call of fail was not made"),
        ("<tool_call>\n{nonsense}\n</tool_call>", "invalid_json", "could not be read"),
    ],
)
def test_what_a_tool_does_wrong_the_model_is_told(renderer, tool, status, said, tmp_path):
    names = ["fail", "shout"]
    agent = {}
    if "sleep" in tool:
        source = tmp_path / "slow.py"
        source.write_text(
            "import asyncio\nfrom turnwise.tools import function_tool\n\n"
            "@function_tool(timeout_s=0.2)\nasync def sleep() -> str:\n"
            '    """Sleep for ever."""\n    await asyncio.sleep(3600)\n    return ""\n'
        )
        agent = {"tools": [str(source)]}
    ((segment,), engine, collector) = play(renderer, [tool, "#### 7"], *names, agent=agent)
    assert segment.outcome and segment.outcome.figures[f"tools/{status}"] == 1
    assert said in engine.prompts[1]
    assert len(engine.prompts[1]) < 3000
    assert collector.tally.failures == 0


@pytest.mark.parametrize("history", ["exact", "template"])
def test_a_call_nested_without_end_is_shown_as_it_was_sampled(history):
    deep = '{"a": ' * 101 + "1" + "}" * 101
    replies = [f'<tool_call>\n{{"name": "add", "arguments": {deep}}}\n</tool_call>', "#### 7"]
    ((segment,), *_) = play(Renderer(make_tokenizer(HERMES), history), replies, rollout={"max_prompt_tokens": 4_000})
    assert segment.outcome and segment.outcome.figures["tools/invalid_json"] == 1
    first, second = segment.turns
    row = (*first.prompt_ids, *first.generation.token_ids)
    assert second.prompt_ids[: len(row)] == row


def test_a_reward_that_is_no_number_loses_the_episode_and_nothing_else(renderer):
    made = config("bribe", rollout={"n_env": 2})
    collector = Collector(made, renderer)
    engine = Scripted(renderer, [call("bribe"), "#### 7", "#### 7"])
    segments = collector.collect(engine)
    assert [(one.slot, one.episode) for one in segments] == [(0, 1), (1, 0)]
    assert (collector.tally.failures, collector.tally.dropped_turns) == (1, 1)
    assert "bribe" in collector.tally.last_failure


def test_a_model_that_reads_text_alone_is_told_of_a_picture(renderer):
    (_, engine, _) = play(renderer, [call("photograph"), "#### 7"], "photograph")
    assert "Done.\n[image: not shown, as you read text alone]" in engine.prompts[1]


def test_what_tools_give_is_earned_by_the_turn_that_called(renderer):
    ((segment,), *_) = play(renderer, [call("pay", amount=0.25), call("pay", amount=-1), "#### 7"], "pay")
    assert [turn.reward for turn in segment.turns] == [0.25, -1.0, 0.0]


def test_an_episode_is_truncated_after_so_many_turns(renderer):
    ((segment,), *_) = play(renderer, [call("add", a=1, b=2)], agent={"max_turns": 3}, reward=None)
    assert (len(segment.turns), segment.end) == (3, "truncated")
    assert "<tool_response>\n3\n" in renderer.tokenizer.decode(segment.final_prompt_ids)
    assert segment.outcome and segment.outcome.figures["limits/max_turns"] == 1


def test_a_verdict_ends_an_episode_that_a_limit_stopped(renderer):
    """To bootstrap as well would make it worth as much never to answer as to answer."""
    ((segment,), *_) = play(renderer, [call("add", a=1, b=2)], agent={"max_turns": 3})
    assert (len(segment.turns), segment.end, segment.final_prompt_ids) == (3, "terminated", ())
    assert segment.outcome and segment.outcome.success is False


@pytest.mark.parametrize("limit", ["max_turns", "max_malformed_turns", "max_tool_reply", "max_parallel_calls"])
def test_a_limit_of_nothing_is_refused(renderer, limit):
    with pytest.raises(ValueError, match=rf"agent\.{limit} is 0; it must be 1 or more"):
        play(renderer, [""], agent={limit: 0})


def test_calls_that_cannot_be_read_end_the_episode_at_last(renderer):
    ((segment,), *_) = play(renderer, ["<tool_call>\n{nonsense}\n</tool_call>"], agent={"max_malformed_turns": 2})
    assert (len(segment.turns), segment.end) == (3, "terminated")
    assert {turn.action.status for turn in segment.turns if turn.action} == {"invalid"}


def test_an_answer_too_long_for_the_prompt_is_cut_to_fit(renderer):
    agent, rollout = {"max_tool_reply": 5000}, {"max_prompt_tokens": 700}
    ((segment,), engine, _) = play(renderer, [call("shout"), "#### 7"], "shout", agent=agent, rollout=rollout)
    assert len(segment.turns) == 2
    assert 600 < len(segment.turns[1].prompt_ids) <= 700
    assert "(truncated)" in engine.prompts[1]


def test_a_word_too_many_of_the_user_ends_the_episode_at_the_limit(renderer, tmp_path):
    """What the critic reads at the end is no longer than what the model may read."""
    users = tmp_path / "users.yaml"
    users.write_text(f"interaction:\n  - class_name: {__name__}.Talker\n")
    extra, rollout = {"interaction_kwargs": {"name": "talker"}}, {"max_prompt_tokens": 700}
    agent = {"interaction": str(users)}
    ((segment,), _, _) = play(renderer, ["Yes?"], extra=extra, agent=agent, rollout=rollout, reward=None)
    assert (len(segment.turns), segment.end) == (1, "truncated")
    assert segment.outcome and segment.outcome.figures["limits/max_prompt_tokens"] == 1
    assert len(segment.final_prompt_ids) == 700
    assert segment.outcome and segment.outcome.figures["user/words"] == 1


class Talker(BaseInteraction):
    async def generate_response(self, instance_id: str, messages: Any, **kwargs: Any) -> Any:
        return False, "word " * 2000, 0.0, {"words": 1, "mood": "fine"}


@function_tool
def weigh() -> tuple[str, float, dict[str, Any]]:
    """Count something."""
    return "heavy", 0.0, {"grams": 3, "of": "lead", "odd": float("inf")}


def test_what_tools_count_is_told(renderer):
    ((segment,), *_) = play(renderer, [call("weigh"), call("weigh"), "#### 7"], "weigh")
    assert segment.outcome
    told = {name: value for name, value in segment.outcome.figures.items() if name.startswith("tools/")}
    assert told == {"tools/ok": 2, "tools/weigh/grams": 6}


@pytest.mark.parametrize("unit", ["token", "characters"])
def test_an_unknown_unit_is_refused(renderer, unit):
    with pytest.raises(ValueError, match=f"agent.tool_reply_unit is '{unit}'; it must be 'chars' or 'tokens'"):
        play(renderer, ["#### 7"], agent={"tool_reply_unit": unit})


def test_a_prompt_that_is_too_long_loses_the_episode(renderer):
    made = config(rollout={"max_prompt_tokens": 50})
    with pytest.raises(ValueError, match=r"rollout.max_prompt_tokens is 50, but the prompt of data/0/\d takes \d+ tok"):
        Collector(made, renderer).collect(Scripted(renderer, ["#### 7"]))


def test_a_sample_may_name_its_agent(renderer):
    replies = [call("add", a=1, b=2)]
    ((segment,), engine, _) = play(renderer, replies, extra={"agent_name": "single_turn_agent"})
    assert (len(segment.turns), segment.end) == (1, "terminated")
    assert '"name": "add"' not in engine.prompts[0]
    ((segment,), *_) = play(
        renderer,
        replies,
        extra={"agent_name": "patient"},
        agents={"patient": {"use": "tool", "tools": ["sums:add"], "max_turns": 2}},
    )
    assert len(segment.turns) == 2
    others = {"tool_agent": {"use": "single_turn"}}  # said of the very name: no word for the recipe's own agent
    ((segment,), *_) = play(renderer, replies, extra={"agent_name": "tool_agent"}, agents=others)
    assert len(segment.turns) == 1
    with pytest.raises(ValueError, match=r"^sums:Rows, train row \d+: a sample names the agent 'nobody'"):
        play(renderer, replies, extra={"agent_name": "nobody"})
    with pytest.raises(ValueError, match="a sample names the agent 'this:d'"):  # rows load no code
        play(renderer, replies, extra={"agent_name": "this:d"})
    assert "this" not in sys.modules


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ({"tool_selection": ["ad"]}, "the sample names the tool 'ad'; did you mean 'add'"),
        ({"tools_kwargs": {"add": {"create": {}}}}, "unknown key tools_kwargs.add.create"),
        ({"agent_name": "helper", "tool_selection": ["sub"]}, "the sample names the tool 'sub'"),
    ],
)
def test_a_row_that_cannot_be_played_is_told_before_anything_is(renderer, extra, told):
    helper = {"use": "tool", "tools": ["sums:add"]}
    with pytest.raises(ValueError, match=rf"^sums:Rows, train row \d+: {told}"):
        Collector(config(extra=extra, agents={"helper": helper}), renderer)
    made = config(extra=extra, agents={"helper": helper}, evaluation={"episodes": 2})
    engine = Scripted(renderer, ["#### 7"])
    with pytest.raises(ValueError, match=rf"^sums:Rows, test row \d+: {told}"):
        evaluate(made, Model(engine, renderer))
    assert engine.prompts == []


def test_the_mistake_of_a_named_agent_is_told_under_its_name(renderer):
    helper = {"use": "tool", "tools": ["sums:add"], "max_turn": 3}
    with pytest.raises(ValueError, match=r"^agents.helper: unknown key agent.max_turn; did you mean 'max_turns'"):
        Collector(config(agents={"helper": helper}), renderer)


def test_reasoning_stands_apart_where_there_are_no_tools(renderer):
    replies = ["<think>It is even.</think>4, by <tool_call>"]
    extra = {"agent_name": "single_turn_agent", "ground_truth": "4, by <tool_call>"}
    ((segment,), *_) = play(renderer, replies, extra=extra, reward={"use": "exact_match"})
    assert segment.turns[0].action and segment.turns[0].action.thought == "It is even."
    assert segment.outcome and segment.outcome.success


def test_what_follows_the_last_of_several_thoughts_is_the_action(renderer):
    ((segment,), *_) = play(renderer, ["<think>It is even.</think>So 4.<think>Or\nnot.</think>#### 4"])
    action = segment.turns[0].action
    assert action and (action.thought, action.said) == ("It is even.\nOr\nnot.", "</think>#### 4")
    assert segment.turns[0].action_tokens < 20


def test_a_user_may_go_on_asking(renderer, tmp_path: Path):
    users = tmp_path / "users.yaml"
    users.write_text("interaction:\n  - class_name: turnwise.interactions.gsm8k.Gsm8kInteraction\n")
    extra = {"interaction_kwargs": {"name": "gsm8k", "ground_truth": "7"}}
    (segments, engine, _) = play(renderer, ["#### 5", "#### 7"], extra=extra, agent={"interaction": str(users)})
    assert [len(one.turns) for one in segments] == [2]
    assert engine.prompts[1].count("<|im_start|>user") == 2


def test_an_agent_on_samples_is_brought_back(tiny):
    model, tokenizer = tiny
    tokenizer.chat_template = HERMES
    renderer = Renderer(tokenizer)
    engine = LocalEngine(model, renderer.stop_ids, nullcontext())
    made = config(rollout={"n_env": 2, "max_reply_tokens": 8}, agent={"max_turns": 3})
    made.rollout.episodes, made.rollout.e_len = None, 2
    steady, collector = Collector(made, renderer), Collector(made, renderer)
    for _ in range(3):
        engine.load({}, 0)
        expected = steady.collect(engine)
        saved = json.loads(json.dumps(collector.state()))
        collector = Collector(made, renderer)
        collector.restore(saved)
        engine.load({}, 0)
        assert collector.collect(engine) == expected


def test_a_conversation_that_the_template_writes_otherwise_is_counted(renderer):
    quoted = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
    spaced = quoted.replace(": 1", ":  1")
    for said, mode, differs in ((quoted, "strict", 0.0), (spaced, "strict", 1.0), (spaced, "ignore_strippable", 0.0)):
        ((segment,), *_) = play(renderer, [said, "#### 7"], rollout={"token_check": mode})
        assert segment.outcome and segment.outcome.figures["tokenization/mismatch"] == differs
        assert (segment.outcome.figures["tokenization/mismatch_characters"] > 0) == (differs > 0)
    ((segment,), *_) = play(renderer, [quoted, "#### 7"], rollout={"token_check": "disable"})
    assert segment.outcome and "tokenization/mismatch" not in segment.outcome.figures


@pytest.mark.parametrize("reply", ["<think>\n\n</think>\n\n#### 11", "#### 11", "<think>So.</think>#### 11"])
def test_a_reply_is_judged_without_the_marks_of_its_reasoning(renderer, reply):
    heard = []
    talks = {"use": f"{__name__}:hear"}
    HEARD.clear()
    ((segment,), *_) = play(renderer, [reply], reward=talks)
    heard = HEARD[-1]
    assert heard == "#### 11"
    assert renderer.text(segment.turns[0].generation.token_ids) == reply


HEARD: list[str] = []


def hear(messages: Any) -> float:
    HEARD.append(messages[-1]["content"])
    return 1.0


def test_a_user_that_there_is_not_is_missed_before_anything_is_played(renderer):
    extra = {"interaction_kwargs": {"name": "customer"}}
    with pytest.raises(
        ValueError, match=r"train row 1: .*the user 'customer', and there is none; set agent.interaction"
    ):
        play(renderer, ["#### 7"], extra=extra)


class Mute:
    """Answers once, and asks for no verdict."""

    def __init__(self, setting: Any):
        pass

    async def run(self, session: Any) -> Any:
        raise AssertionError


def test_each_agent_has_to_ask_for_the_verdict_itself(renderer):
    with pytest.raises(ValueError, match=r"agents\.mine: reward\.use=gsm8k would never be asked by agent\.use=.*:Mute"):
        play(renderer, ["#### 7"], agents={"mine": {"use": f"{__name__}:Mute"}})


class Counted(BaseTool):
    """Counts how often it is closed, and knows the episodes that use it."""

    def __init__(self) -> None:
        super().__init__(
            {}, {"name": "counted", "description": "Count.", "parameters": {"type": "object", "properties": {}}}
        )
        self.closed = 0
        self.episodes: list[str] = []

    async def execute(self, instance_id: str, parameters: dict[str, Any]) -> str:
        self.episodes.append(instance_id)
        return "counted"

    def close(self) -> None:
        self.closed += 1


SHARED = Counted()


def test_an_evaluation_leaves_training_its_tools(renderer):
    replies = [call("counted"), "#### 7"]
    made = config("SHARED", evaluation={"episodes": 1, "slots": 1})
    collector = Collector(made, renderer)
    collector.collect(Scripted(renderer, replies))
    evaluate(made, Model(Scripted(renderer, replies), renderer))
    assert SHARED.closed == 0
    collector.close()
    assert SHARED.closed == 1
    assert SHARED.episodes == ["data/0/0/counted", "eval/data/0/0/counted"]


class Cart(BaseTool):
    """Takes from the list that it is given."""

    def __init__(self) -> None:
        schema = {"name": "cart", "description": "Take.", "parameters": {"type": "object", "properties": {}}}
        super().__init__({}, schema)
        self.wanted: dict[str, list[str]] = {}

    async def create(self, instance_id: str | None = None, wanted: Any = None) -> Any:
        self.wanted[str(instance_id)] = wanted
        return instance_id, ToolResponse()

    async def execute(self, instance_id: str, parameters: dict[str, Any]) -> str:
        return self.wanted[instance_id].pop()


CART = Cart()


def test_no_episode_uses_up_the_sample_of_another(renderer):
    extra = {"tools_kwargs": {"cart": {"create_kwargs": {"wanted": ["milk", "eggs"]}}}}
    rollout = {"n_env": 4, "group": 4}
    collector = Collector(config("CART", extra=extra, rollout=rollout), renderer)
    before = collector.samples
    for _ in range(3):
        engine = Scripted(renderer, lambda prompt, _: "#### 7" if "<tool_response>" in prompt else call("cart"))
        collector.collect(engine)
        answers = [prompt.split("<tool_response>")[1].split()[0] for prompt in engine.prompts if "eggs" in prompt]
        assert answers == ["eggs"] * 4
    collector.close()
    again = Collector(config("CART", extra=extra, rollout=rollout), renderer)
    assert before == again.samples
    again.close()
