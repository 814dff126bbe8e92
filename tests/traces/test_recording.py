"""Traces of episodes as they are played: what is in them, in which order, and when."""

import asyncio
import itertools
import json
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from helpers import Counter, Scripted, make_tokenizer, play_config

from turnwise.collector import Collector
from turnwise.config import Config
from turnwise.protocols import Session, Setting
from turnwise.recipe import parse_config
from turnwise.render import Renderer
from turnwise.tools import ToolFault, function_tool
from turnwise.traces.entries import Entry, describe
from turnwise.traces.recording import Recording, Trace
from turnwise.types import Action, Ending, Message, Observation, Segment, Turn

TEMPLATE = (
    "{% if tools %}Tools: {{ tools | tojson }}\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(make_tokenizer(TEMPLATE))


class Rows:
    def rows(self, split: str) -> list[dict[str, Any]]:
        return [{"prompt": f"{split} question {n}"} for n in range(4)]


@function_tool
async def add(a: int, b: int) -> tuple[str, float]:
    """Add two numbers.

    Args:
        a: One of them.
        b: The other.
    """
    await asyncio.sleep(0.02)
    return str(a + b), 0.5


@function_tool
def fail() -> str:
    """Raise."""
    raise RuntimeError("the disk is full")


@function_tool
def collapse() -> str:
    """Lose the episode."""
    raise ToolFault("the service is down")


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def tool_config(**log: Any) -> Config:
    tools = [f"{__name__}:{name}" for name in ("add", "fail", "collapse")]
    return parse_config(
        {
            "agent": {"use": "tool", "tools": tools, "max_parallel_calls": 4},
            "data": {"generate": {"use": f"{__name__}:Rows"}},
            "rollout": {"n_env": 1, "episodes": 1, "max_prompt_tokens": 4000},
            "update": {"minibatch": 1},
            "log": {"traces": ["jsonl"], "trace_every": 1, **log},
        }
    )


def gym_config(**tree: Any) -> Config:
    return play_config(log={"traces": ["jsonl"], "trace_every": 1, **tree.pop("log", {})}, **tree)


def play(
    renderer: Renderer, config: Config, replies: Any = ("ACTION: add",), batches: int = 1
) -> tuple[list[list[Segment]], list[Trace]]:
    collector, engine = Collector(config, renderer), Scripted(renderer, replies)
    segments, traces = [], []
    for _ in range(batches):
        segments.append(collector.collect(engine))
        traces += collector.tally.traces
    return segments, traces


def told(renderer: Renderer, trace: Trace) -> list[Entry]:
    return describe(trace, 0, 1, renderer.text)


def of_kind(entries: list[Entry], kind: str) -> list[Entry]:
    return [entry for entry in entries if entry.kind == kind]


def check_nesting(entries: list[Entry]) -> None:
    """Parents come first and hold their children in time; turns follow one another."""
    assert [entry.span for entry in entries] == list(range(len(entries)))
    assert [entry.span for entry in entries if entry.parent is None] == [0]
    for entry in entries:
        assert entry.start_s <= entry.end_s
        if entry.parent is not None:
            parent = entries[entry.parent]
            assert parent.span < entry.span
            assert parent.start_s <= entry.start_s and entry.end_s <= parent.end_s
    turns = of_kind(entries, "turn")
    assert all(one.end_s <= other.start_s for one, other in itertools.pairwise(turns))
    json.dumps([entry.flat() for entry in entries])


# -- what is recorded


def test_an_episode_in_an_environment_is_told_turn_by_turn(renderer):
    replies = ["ACTION: add", "ACTION: jump", "ACTION: win"]
    config = gym_config(rollout={"n_env": 1, "episodes": 1}, environment={"reward": "native"})
    ((segment,),), (trace,) = play(renderer, config, replies)
    entries = told(renderer, trace)
    check_nesting(entries)
    assert [entry.kind for entry in entries] == ["episode", *["turn", "generation"] * 3]
    turns = of_kind(entries, "turn")
    assert [turn.outputs for turn in turns] == replies
    assert [turn.attributes["status"] for turn in turns] == ["valid", "invalid", "valid"]
    assert [turn.attributes["reward"] for turn in turns] == [turn.reward for turn in segment.turns]
    assert [tuple(turn.attributes["token_ids"]) for turn in turns] == [
        one.generation.token_ids for one in segment.turns
    ]
    assert "step 1 count 1" in turns[1].inputs
    logprobs = segment.turns[0].generation.logprobs
    assert turns[0].attributes["logprob_mean"] == pytest.approx(sum(logprobs) / len(logprobs))
    episode = entries[0].attributes
    assert (episode["end"], episode["success"], episode["turns"]) == ("terminated", True, 3)
    assert episode["episode_return"] == pytest.approx(sum(turn.reward for turn in segment.turns))
    assert (entries[0].name, episode["seed"]) == (f"{segment.task}/0/0", segment.seed)


@pytest.mark.parametrize(("memory", "rows"), [("full", [0, 0, 0, 0]), ("window", [0, 1, 2, 3])])
def test_rows_and_their_masks_can_be_put_together_again(renderer, memory, rows):
    config = gym_config(memory=memory_of(memory), rollout={"n_env": 1, "episodes": 1, "max_episode_turns": 4})
    ((segment,),), (trace,) = play(renderer, config)
    turns = of_kind(told(renderer, trace), "turn")
    assert [turn.attributes["row"] for turn in turns] == rows
    row: list[int] = []
    for turn, played in zip(turns, segment.turns, strict=True):
        about = turn.attributes
        row = [*(row if about["row"] == rows[0] else []), *about["prompt_ids"]]
        assert tuple(row) == played.prompt_ids
        row += about["token_ids"]


def memory_of(name: str) -> dict[str, Any]:
    return {"use": name} if name == "full" else {"use": name, "turns": 2}


def test_what_a_memory_asked_is_a_turn_of_its_own(renderer):
    config = gym_config(memory={"use": "note"}, rollout={"n_env": 1, "episodes": 1, "max_episode_turns": 3})
    _, (trace,) = play(renderer, config)
    entries = told(renderer, trace)
    check_nesting(entries)
    statuses = [turn.attributes["status"] for turn in of_kind(entries, "turn")]
    assert statuses == ["valid", "of_memory", "valid", "of_memory", "valid"]


def test_calls_of_one_reply_lie_side_by_side_in_its_turn(renderer):
    calls = call("add", a=1, b=2) + call("fail") + call("add", a=3, b=4) + call("nothing")
    _, (trace,) = play(renderer, tool_config(), [calls, "done"])
    entries = told(renderer, trace)
    check_nesting(entries)
    tools = of_kind(entries, "tool")
    first, second = of_kind(entries, "turn")
    assert [(one.name, one.parent) for one in tools] == [(n, first.span) for n in ("add", "fail", "add", "nothing")]
    assert [one.attributes["status"] for one in tools] == ["ok", "tool_error", "ok", "unknown_tool"]
    assert [one.inputs for one in tools] == [{"a": 1, "b": 2}, {}, {"a": 3, "b": 4}, {}]
    assert (tools[0].outputs, tools[2].outputs) == ("3", "7")
    assert "the disk is full" in tools[1].outputs
    assert max(tools[0].start_s, tools[2].start_s) < min(tools[0].end_s, tools[2].end_s)
    assert [turn.attributes["reward"] for turn in (first, second)] == [1.0, 0.0]
    assert first.attributes["row"] == second.attributes["row"] and "<tool_call>" not in second.inputs
    assert entries[0].attributes["sample"] is not None


def test_a_tool_at_fault_is_the_last_thing_that_a_dropped_episode_tells(renderer):
    def reply(prompt: str, number: int) -> str:
        return ["let me see " + call("add", a=1, b=2), call("collapse"), "done"][number]

    _, (lost, kept) = play(renderer, tool_config(), reply)
    entries = told(renderer, lost)
    check_nesting(entries)
    assert (lost.end, lost.outcome, lost.dropped_turns) == ("dropped", None, 2)
    assert "the service is down" in lost.failure
    assert [turn.attributes["dropped"] for turn in of_kind(entries, "turn")] == [True, True]
    assert "ToolFault: the service is down" in of_kind(entries, "tool")[-1].attributes["error"]
    assert (kept.end, kept.episode) == ("terminated", 1)
    assert [turn.attributes["dropped"] for turn in of_kind(told(renderer, kept), "turn")] == [False]


class Brittle(Counter):
    """Breaks in its fifth step, once."""

    broken: ClassVar[list[bool]] = []

    def step(self, action: str) -> Any:
        if self.steps == 4 and not self.broken:
            self.broken.append(True)
            raise RuntimeError("the board fell")
        return super().step(action)


def test_the_reply_that_broke_an_environment_is_told(renderer):
    Brittle.broken.clear()
    config = gym_config(env=f"{__name__}:Brittle", rollout={"n_env": 1, "e_len": 3})
    (first, _), (trace,) = play(renderer, config, batches=2)
    entries = told(renderer, trace)
    check_nesting(entries)
    assert len(first[0].turns) == 3
    assert [turn.attributes["dropped"] for turn in of_kind(entries, "turn")] == [False, False, False, True]
    reply = entries[-1]
    assert (reply.kind, reply.parent, reply.outputs) == ("generation", 0, "ACTION: add")
    assert "the board fell" in entries[0].attributes["failure"]


def test_an_episode_of_two_batches_is_one_trace_and_its_wait_no_part_of_a_turn(renderer):
    collector = Collector(gym_config(rollout={"n_env": 1, "e_len": 3, "max_episode_turns": 5}), renderer)
    engine = Scripted(renderer)
    collector.collect(engine)
    assert collector.tally.traces == []
    middle = _now()
    collector.collect(engine)
    (trace,) = collector.tally.traces
    entries = told(renderer, trace)
    check_nesting(entries)
    turns = of_kind(entries, "turn")
    assert len(turns) == 5
    assert turns[2].end_s < middle < turns[3].start_s
    assert trace.end == "truncated"


def _now() -> float:
    from turnwise.traces.recording import now

    return now()


# -- which episodes, and what it costs


def test_nothing_is_recorded_unless_asked_for(renderer):
    collector = Collector(play_config(rollout={"n_env": 2, "episodes": 2, "max_episode_turns": 2}), renderer)
    collector.collect(Scripted(renderer))
    assert collector.tally.traces == []
    assert all(one["episode"]["recording"] is None for one in collector.state())


@pytest.mark.parametrize(("inputs", "found"), [({"query": {1}}, 3), ("wiki", 1j)])
def test_a_span_that_is_told_no_json_says_so_at_once(inputs: Any, found: Any):
    told = pytest.raises(ValueError, match=r"the span 'wiki' is told .*; tell it what is JSON")
    with told, Recording().span("search", "wiki", inputs) as note:
        note(["a page"], found=found)


def test_siblings_are_traced_together(renderer):
    config = gym_config(rollout={"n_env": 6, "group": 2, "episodes": 2, "max_episode_turns": 1}, log={"trace_every": 4})
    _, traces = play(renderer, config, batches=2)
    assert (traces[0].group, traces[0].episode) == (0, 0) and 2 < len(traces) < 24
    for one, other in zip(traces[::2], traces[1::2], strict=True):
        assert (one.episode, one.slot + 1) == (other.episode, other.slot) and one.slot == 2 * one.group
        assert (one.seed, one.group) == (other.seed, other.group)


# -- a run that was interrupted


class Asking:
    """Answers three questions, with a span of its own in each turn; cannot say where it stands."""

    def __init__(self, setting: Setting):
        self._codec = setting.codec

    async def run(self, session: Session) -> Ending:
        with session.span("thought", "before", None):
            pass
        for number in range(3):
            messages: list[Message] = [{"role": "user", "content": f"Question {number}?"}]
            prompt = self._codec.prompt(messages)
            generation = await session.generate(prompt)
            text = self._codec.text(generation.token_ids)
            action = Action(text, "valid", text, "", 0)
            session.record(Turn(Observation(""), prompt, generation, action, 0, 0.0, text, text, text))
            session.reward(1.0)
            with session.span("thought", f"after {number}", {"number": number}) as note:
                note("so be it")
        return Ending((), success=True)


def timeless(trace: Trace, renderer: Renderer) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in entry.flat().items() if key not in ("start_s", "end_s")}
        for entry in told(renderer, trace)
    ]


@pytest.mark.parametrize(
    "make",
    [
        lambda: gym_config(agent={"use": f"{__name__}:Asking"}, rollout={"n_env": 1, "e_len": 2}),
        lambda: gym_config(rollout={"n_env": 1, "e_len": 2, "max_episode_turns": 3}),
    ],
)
def test_an_interrupted_episode_is_told_as_if_it_had_not_been(renderer, make: Callable[[], Config]):
    _, (whole, *_) = play(renderer, make(), batches=2)
    first = Collector(make(), renderer)
    first.collect(Scripted(renderer))
    saved = json.loads(json.dumps(first.state()))
    second = Collector(make(), renderer)
    assert second.restore(saved) == 0
    second.collect(Scripted(renderer))
    (resumed, *_) = second.tally.traces
    assert timeless(resumed, renderer) == timeless(whole, renderer)
    check_nesting(told(renderer, resumed))


class Doing:
    """Asks three times, and between two questions it does something; cannot say where it stands."""

    def __init__(self, setting: Setting):
        self._codec = setting.codec

    async def run(self, session: Session) -> Ending:
        with session.span("thought", "before", None):
            session.count("begun")
        for number in range(3):
            prompt = self._codec.prompt([{"role": "user", "content": f"Question {number} of {session.name}?"}])
            generation = await session.generate(prompt)
            text = self._codec.text(generation.token_ids)
            action = Action(text, "valid", text, "", 0)
            session.record(Turn(Observation(""), prompt, generation, action, 0, 0.0, text, text, text))
            with session.span("thought", f"after {number}", {"number": number}) as note:
                for _ in range(7 + 30 * (number == 1) * ("/0/" in session.name)):
                    await asyncio.sleep(0)
                note("so be it")
            session.reward(1.0 + number)
        return Ending((), success=True)


@pytest.mark.parametrize("killed", range(10))
def test_an_elastic_episode_is_told_once_though_a_kill_found_a_tool_at_work(renderer, killed: int):
    rollout = {"n_env": 2, "e_len": 2, "mode": "elastic"}
    config = gym_config(agent={"use": f"{__name__}:Doing"}, rollout=rollout, log={"trace_every": 1})
    collector, traces = Collector(config, renderer), []
    for number in range(14):
        collector.collect(Scripted(renderer))
        traces += collector.tally.traces
        if number == killed:
            saved = json.loads(json.dumps(collector.state()))
            collector.close()
            collector = Collector(config, renderer)
            assert collector.restore(saved) == 0
    collector.close()
    assert len(traces) > 5
    for trace in traces:
        entries = told(renderer, trace)
        check_nesting(entries)
        turns = of_kind(entries, "turn")
        assert [turn.attributes["reward"] for turn in turns] == [1.0, 2.0, 3.0]
        assert [turn.attributes["row"] for turn in turns] == [0, 1, 2]
        assert [one.name for one in of_kind(entries, "thought")] == ["before", "after 0", "after 1", "after 2"]
        assert trace.outcome and trace.outcome.figures == {"begun": 1.0}
