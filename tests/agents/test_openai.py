"""Programs of others: the turns that become of their calls, and what comes of programs that misbehave."""

import asyncio
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import guests
import pytest
import torch
from helpers import Scripted, make_tokenizer
from sums import HERMES, call

from turnwise.batch import pack
from turnwise.config import Config, parse_config
from turnwise.engines.local import LocalEngine
from turnwise.render import Renderer
from turnwise.rollout import Collector
from turnwise.types import Segment


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(make_tokenizer(HERMES))


def config(agent: str | dict[str, Any], rollout: dict[str, Any] | None = None, **tree: Any) -> Config:
    """`agent` is the name of a program among the guests, or the keys of an agent."""
    if isinstance(agent, str):
        agent = {"function": f"guests:{agent}"}
    return parse_config(
        {
            "agent": {"use": "openai", **({"timeout_s": 600} if "use" not in agent else {}), **agent},
            "data": {"generate": {"use": "sums:Rows", **tree.pop("rows", {})}},
            "reward": {"use": "gsm8k"},
            "rollout": {"n_env": 1, "episodes": 1, "max_prompt_tokens": 4000, **(rollout or {})},
            "update": {"minibatch": 1},
            **tree,
        }
    )


def play(renderer: Renderer, replies: Any, agent: Any, **tree: Any) -> tuple[list[Segment], Scripted, Collector]:
    collector, engine = Collector(config(agent, **tree), renderer), Scripted(renderer, replies)
    return collector.collect(engine), engine, collector


def adds(prompt: str, _: int) -> str:
    question = int(prompt.split("What is ")[1].split()[0])
    if "<tool_response>" not in prompt:
        return f"Let me see. {call('add', a=question, b=1)}"
    return f"#### {prompt.split('<tool_response>')[1].split('</tool_response>')[0].strip()}"


def assert_same(segments: list[Segment], others: list[Segment]) -> None:
    """The same turns, and so the same tensors."""
    for one, other in zip(segments, others, strict=True):
        assert (one.turns, one.end, one.final_prompt_ids) == (other.turns, other.end, other.final_prompt_ids)
        assert one.outcome and other.outcome and one.outcome.success == other.outcome.success
    left, right = vars(pack(segments)), vars(pack(others))
    for name, value in left.items():
        same = torch.equal(value, right[name]) if isinstance(value, torch.Tensor) else value == right[name]
        assert same or name == "segments", name


@pytest.mark.parametrize("program", ["tool_loop", "streaming_loop"])
def test_a_program_with_tools_plays_the_turns_of_the_tool_agent(renderer, program):
    native, *_ = play(renderer, adds, {"use": "tool", "tools": ["sums:add"]}, rollout={"n_env": 2})
    foreign, *_ = play(renderer, adds, program, rollout={"n_env": 2})
    assert [len(one.turns) for one in native] == [2, 2]
    assert_same(native, foreign)
    assert len(pack(foreign).row_lengths) == 2  # each second prompt extends the first, and the reply to it
    assert foreign[0].outcome and foreign[0].outcome.success


def test_what_a_model_samples_survives_the_way_through_a_program(tiny):
    model, tokenizer = tiny
    tokenizer.chat_template = HERMES
    renderer = Renderer(tokenizer)
    rollout = {"episodes": 2, "max_reply_tokens": 8}  # one slot: who shares a forward pass depends on timing
    played = []
    for agent in ({"use": "guests:Doubter"}, "doubter"):
        made = config(agent, rollout, reward=None)
        played.append(Collector(made, renderer).collect(LocalEngine(model, renderer.stop_ids, nullcontext())))
    assert_same(*played)
    assert len(pack(played[1]).row_lengths) == 2


def test_an_episode_goes_on_through_batches_and_interruptions(renderer):
    made = config({"function": "guests:tool_loop", "timeout_s": 600})
    made.rollout.episodes, made.rollout.e_len = None, 3
    steady, collector = Collector(made, renderer), Collector(made, renderer)
    engine = Scripted(renderer, adds)
    for _ in range(2):
        expected = steady.collect(engine)
        saved = json.loads(json.dumps(collector.state()))
        collector = Collector(made, renderer)
        collector.restore(saved)
        segments = collector.collect(engine)
        assert segments == expected
        assert sum(len(one.turns) for one in segments) == 3
    assert [one.end for one in segments] == ["terminated", "terminated"]


def test_an_edited_reply_opens_a_row_and_what_a_program_returns_is_earned(renderer):
    ((segment,), engine, _) = play(renderer, ["#### 1", "#### 2"], "editor", reward=None)
    assert [turn.reward for turn in segment.turns] == [0.0, 0.5]
    assert "I was edited." in engine.prompts[1] and "#### 1" not in engine.prompts[1]
    assert len(pack([segment]).row_lengths) == 2


def test_limits_truncate(renderer):
    ((segment,), *_) = play(renderer, ["More."], {"function": "guests:endless", "max_turns": 3, "timeout_s": 600})
    assert (len(segment.turns), segment.end) == (3, "truncated")
    assert renderer.tokenizer.decode(segment.final_prompt_ids).count("Go on.") == 3
    ((segment,), *_) = play(renderer, ["More."], "endless", rollout={"max_prompt_tokens": 200})
    assert 1 < len(segment.turns) < 16 and segment.end == "truncated"
    assert len(segment.turns[-1].prompt_ids) <= 200 < len(segment.final_prompt_ids)


def test_the_same_question_twice_at_once_is_two_turns(renderer):
    ((segment,), *_) = play(renderer, ["#### 1", "#### 2"], "voter")
    assert [turn.text for turn in segment.turns] == ["#### 1", "#### 2"]


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "once"}, {"x-stainless-retry-count": "1"}])
def test_a_question_that_is_sent_again_is_one_turn(renderer, headers):
    collector = Collector(config("impatient", rows={"extra": {"headers": headers}}), renderer)
    endpoint = collector._shared.once("endpoint", lambda: pytest.fail("it was made with the agent"))

    class Slow(Scripted):
        async def generate(self, *asked: Any) -> Any:
            guests.ASKED.set()
            while not guests.GO_ON.is_set():
                if headers or any(episode.unread for episode in endpoint._episodes.values()):
                    guests.LEFT.set()
                await asyncio.sleep(0.01)
            return await super().generate(*asked)

    for event in (guests.ASKED, guests.LEFT, guests.GO_ON):
        event.clear()
    (segment,) = collector.collect(Slow(renderer, ["#### 1"]))
    assert len(segment.turns) == 1


def test_what_cannot_be_had_is_refused_in_the_words_of_openai(renderer):
    ((segment,), *_) = play(renderer, ["#### 1"], "clumsy")
    assert len(segment.turns) == 1
    asked, (no_json, a_list, stranger, *early) = (
        guests.HEARD[: len(guests.REFUSED)],
        guests.HEARD[len(guests.REFUSED) :],
    )
    for (param, _, code), (status, body) in zip(guests.REFUSED, asked, strict=True):
        assert status == (404 if code == "model_not_found" else 400)
        assert body["error"]["type"] == "invalid_request_error"
        assert body["error"]["param"].split(".")[0] == param and (body["error"]["code"] or "") == code
    assert (no_json[0], a_list[0], stranger[0]) == (400, 400, 404)
    assert [status for status, _ in early] == [400, 400, 400]


def test_a_program_may_reward_turns_and_end_its_episode(renderer):
    guests.HEARD.clear()
    ((segment,), *_) = play(renderer, ["#### 1"], "payer", reward=None)
    assert [turn.reward for turn in segment.turns] == [0.0, 1.5, 0.5]
    assert segment.end == "truncated" and segment.final_prompt_ids
    assert [status for status, _ in guests.HEARD] == [200, 200, 400, 400]


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        ("mute", "ended without a chat call"),
        ("crasher", "failed: RuntimeError: no money left"),
        ("teller", "returned nan; return a finite number"),
        ({"function": "guests:sleeper", "timeout_s": 0.1}, "neither called nor ended for 0.1 s"),
        ({"command": f"{sys.executable} -c 'print(1); raise SystemExit(3)'"}, "exited with code 3: 1"),
    ],
)
def test_a_program_that_fails_loses_its_episode(renderer, agent, said):
    made = config(agent, environment={"max_failures": 1})
    with pytest.raises(ValueError, match=said):
        Collector(made, renderer).collect(Scripted(renderer, ["#### 1"]))


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        ({}, "either agent.command or agent.function"),
        ({"command": "x", "function": "y:z"}, "either agent.command or agent.function"),
        ({"command": "no-such-program at all"}, "there is no such program"),
        ({"function": "guests:post"}, "asks for address; it can ask for base_url"),
        ({"function": "guests:mute", "max_turns": 0}, "agent.max_turns is 0"),
    ],
)
def test_mistakes_are_told_before_anything_is_played(renderer, agent, said):
    with pytest.raises(ValueError, match=said):
        Collector(config(agent), renderer)


def test_a_command_finds_its_sample_and_the_endpoint(renderer, tmp_path: Path):
    program = tmp_path / "guest.py"
    program.write_text(
        "import json, os, sys, urllib.request\n"
        "body = {'model': os.environ['OPENAI_MODEL'], 'messages': json.load(sys.stdin)['prompt']}\n"
        "headers = {'Authorization': 'Bearer ' + os.environ['OPENAI_API_KEY']}\n"
        "address = os.environ['OPENAI_BASE_URL'].split('/t/')[0] + '/v1/chat/completions'\n"  # known by its key alone
        "urllib.request.urlopen(urllib.request.Request(address, json.dumps(body).encode(), headers)).read()\n"
    )
    ((segment,), engine, _) = play(renderer, ["#### 1"], {"command": f"{sys.executable} {program}", "timeout_s": 600})
    assert len(segment.turns) == 1 and "What is" in engine.prompts[0]
