"""Programs of others: the turns that become of their calls, and what comes of programs that misbehave."""

import asyncio
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import guests
import pytest
from helpers import Scripted, make_tokenizer
from sums import HERMES, adds, assert_same, call, config

from turnwise.batch import pack
from turnwise.collector import Collector
from turnwise.engines.local import LocalEngine
from turnwise.render import Renderer
from turnwise.types import Segment


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(make_tokenizer(HERMES))


def play(renderer: Renderer, replies: Any, agent: Any, **tree: Any) -> tuple[list[Segment], Scripted, Collector]:
    collector, engine = Collector(config(agent, **tree), renderer), Scripted(renderer, replies)
    return collector.collect(engine), engine, collector


@pytest.mark.parametrize("program", ["tool_loop", "streaming_loop", "items_loop", "streaming_items_loop"])
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


def test_a_call_that_cannot_be_read_is_counted_and_not_made(renderer):
    good, bad = call("add", a=1, b=2), "<tool_call>\n{nonsense}\n</tool_call>"
    guests.HEARD.clear()
    (alone, beside), *_ = play(renderer, [f"Hm. {bad}", f"Hm. {bad} {good}"], "hearer", rollout={"episodes": 2})
    (_, first), (_, second) = guests.HEARD
    assert "nonsense" in first["content"] and "tool_calls" not in first
    assert second["content"] == "Hm." and [one["function"]["name"] for one in second["tool_calls"]] == ["add"]
    for segment in (alone, beside):
        assert segment.outcome and segment.outcome.figures["calls/unreadable"] == 1


def test_a_name_that_no_wire_takes_is_told_with_a_question_mark(renderer):
    guests.HEARD.clear()
    play(renderer, ['<tool_call>{"name": "a\\ud800", "arguments": {}}</tool_call>'], "hearer")
    ((_, said),) = guests.HEARD
    assert said["tool_calls"][0]["function"]["name"] == "a?"


def test_a_tool_that_nobody_checked_harms_nobody(renderer):
    replies = ["<tool_call><function=add><parameter=a>1</parameter></function></tool_call>"]
    for parameters in ({"properties": None}, {"properties": {"a": {"type": None, "anyOf": None, "oneOf": 1}}}):
        agent = {"function": "guests:hearer", "format": "qwen3_coder", "timeout_s": 600}
        guests.HEARD.clear()
        play(renderer, replies, agent, rows={"extra": {"parameters": parameters}})
        ((_, said),) = guests.HEARD
        assert json.loads(said["tool_calls"][0]["function"]["arguments"]) == {"a": 1}


def test_limits_truncate(renderer):
    endless = {"function": "guests:endless", "max_turns": 3, "timeout_s": 600}
    ((segment,), *_) = play(renderer, ["More."], endless, reward=None)
    assert (len(segment.turns), segment.end) == (3, "truncated")
    assert segment.outcome and segment.outcome.figures["limits/max_turns"] == 1
    assert renderer.tokenizer.decode(segment.final_prompt_ids).count("Go on.") == 3
    ((segment,), *_) = play(renderer, ["More."], "endless", rollout={"max_prompt_tokens": 200}, reward=None)
    assert 1 < len(segment.turns) < 16 and segment.end == "truncated"
    assert segment.outcome and segment.outcome.figures["limits/max_prompt_tokens"] == 1
    last = segment.turns[-1]
    assert len(last.prompt_ids) <= 200
    row = (*last.prompt_ids, *last.generation.token_ids)
    assert segment.final_prompt_ids[: len(row)] == row  # and no more of what followed than the limit allows
    assert len(segment.final_prompt_ids) == max(200, len(row) + 1)


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
    refused = [*guests.REFUSED, *guests.REFUSED_ITEMS]
    asked, (no_json, a_list, stranger, *early) = guests.HEARD[: len(refused)], guests.HEARD[len(refused) :]
    for (param, _, code), (status, body) in zip(refused, asked, strict=True):
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
    assert [status for status, _ in guests.HEARD] == [200, 200, 400, 400, 400]


def test_an_episode_that_a_program_truncates_heeds_the_limit_of_prompts(renderer):
    """As do those that a limit truncates: what comes after the newest reply is cut."""
    ((segment,), *_) = play(renderer, ["#### 1" * 9], "payer", reward=None, rollout={"max_prompt_tokens": 60})
    last = segment.turns[-1]
    row = (*last.prompt_ids, *last.generation.token_ids)
    assert len(last.prompt_ids) <= 60 < len(row)
    assert len(segment.final_prompt_ids) == len(row) + 1


def test_a_program_may_end_its_episode_as_done(renderer):
    ((segment,), *_) = play(renderer, ["#### 1"], "quitter")
    assert (len(segment.turns), segment.end, segment.final_prompt_ids) == (1, "terminated", ())


def test_half_a_surrogate_pair_is_repeated_as_it_came(renderer):
    guests.HEARD.clear()
    play(renderer, ["#### 1"], "halver")
    ((status, said),) = guests.HEARD
    assert (status, said["instructions"]) == (200, "Be \ud83d.")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("[" * 100_000, "is not the text of a JSON object"),
        ('{"a": ' * 800 + "1" + "}" * 800, "refuses the conversation: maximum recursion depth"),
    ],
)
def test_arguments_nested_too_deeply_are_refused(renderer, arguments, said):
    guests.HEARD.clear()
    play(renderer, ["#### 1"], "digger", rows={"extra": {"arguments": arguments}})
    ((status, body),) = guests.HEARD
    assert status == 400 and said in body["error"]["message"]


def test_a_program_that_does_not_stop_is_left_behind(renderer, monkeypatch):
    monkeypatch.setattr("turnwise.agents.calls._PARTING_S", 0.01)
    guests.HEARD.clear()
    made = config({"function": "guests:stubborn", "timeout_s": 0.1}, environment={"max_failures": 1})
    collector = Collector(made, renderer)
    with pytest.raises(ValueError, match="neither called nor ended"):
        collector.collect(Scripted(renderer, ["#### 1"]))
    assert not guests.HEARD
    collector.close()


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        ("mute", "ended without a chat call"),
        ("crasher", "failed: RuntimeError: no money left"),
        ("teller", "returned nan; return a finite number"),
        ("boaster", "returned 10+; return a finite number"),
        ("titan", "returned a value of type int; return a finite number"),
        ("leaver", r"failed: Exited: it tried to exit \(3\)"),
        ({"function": "guests:sleeper", "timeout_s": 0.1}, "neither called nor ended for 0.1 s"),
        ({"function": "guests:nagger", "timeout_s": 0.5}, "neither called nor ended for 0.5 s"),
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
        ({"function": "guests:mute", "timeout_s": 0}, "agent.timeout_s is 0"),
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
