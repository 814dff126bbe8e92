"""Who keeps traces: the file, the thread beside the training, and what is left out of both."""

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from entries import entry

from turnwise.recipe import parse_config
from turnwise.traces.background import Background
from turnwise.traces.entries import Entry
from turnwise.traces.jsonl import Jsonl
from turnwise.traces.redact import MARK, redact


def read(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "traces.jsonl").read_text().splitlines()]


# -- the file


def test_what_is_written_is_a_line_a_span(tmp_path: Path):
    tracer = Jsonl(tmp_path)
    tracer.write([entry(reward=0.5), entry(span=1, kind="tool", inputs={"a": "ü\n"}, status="ok")])
    tracer.close()
    lines = read(tmp_path)
    assert [(line["kind"], line["parent"]) for line in lines] == [("episode", None), ("tool", 0)]
    assert (lines[0]["reward"], lines[1]["inputs"], lines[1]["status"]) == (0.5, {"a": "ü\n"}, "ok")


@pytest.mark.parametrize("torn", ["", '{"trace": 3, "span', '{"trace": 1}'])
@pytest.mark.parametrize(("known", "kept"), [(0, []), (2, [0, 0, 1, 1]), (9, [0, 0, 1, 1, 2, 2])])
def test_what_is_about_to_happen_again_is_forgotten(tmp_path: Path, torn: str, known: int, kept: list[int]):
    tracer = Jsonl(tmp_path)
    tracer.forget_after(0)
    assert not any(tmp_path.iterdir())
    for number in range(3):
        tracer.write([entry(number), entry(number, 1)])
    with (tmp_path / "traces.jsonl").open("a") as stream:
        stream.write(torn)
    tracer.forget_after(known)
    assert [line["trace"] for line in read(tmp_path)] == kept


# -- the thread


class Slow:
    """Writes when it is let, and fails on the traces of these numbers."""

    def __init__(self, failing: Sequence[int] = ()):
        self.go = threading.Event()
        self.at_work = threading.Event()
        self.done: list[str] = []
        self.failing = failing

    def write(self, trace: Sequence[Entry]) -> None:
        self.at_work.set()
        self.go.wait()
        if trace[0].trace in self.failing:
            raise OSError("no such\nserver")
        self.done.append(f"write {trace[0].trace}")

    def forget_after(self, traces: int) -> None:
        self.done.append(f"forget after {traces}")

    def close(self) -> None:
        self.done.append("close")


def test_a_slow_keeper_keeps_nobody_waiting_and_what_is_lost_is_counted():
    slow = Slow()
    background = Background(lambda: slow, waiting=2)
    background.forget_after(0)
    background.write([entry(0)])
    slow.at_work.wait()
    for number in range(1, 6):  # two of them can wait
        background.write([entry(number)])
    assert (background.lost, background.trouble) == (3, "2 traces wait already")
    slow.go.set()
    background.close()
    assert slow.done == ["forget after 0", "write 0", "write 1", "write 2", "close"]


def test_a_keeper_that_never_answers_is_not_waited_for():
    slow = Slow()
    background = Background(lambda: slow, patience_s=0.05)
    for number in range(3):
        background.write([entry(number)])
    slow.at_work.wait()
    background.close()
    assert background.lost >= 2
    slow.go.set()


def test_a_keeper_that_fails_loses_that_trace_alone():
    slow = Slow(failing=[1])
    slow.go.set()
    background = Background(lambda: slow)
    for number in range(3):
        background.write([entry(number)])
    background.close()
    assert slow.done == ["write 0", "write 2", "close"]
    assert (background.lost, background.trouble) == (1, "OSError: no such server")


def test_nothing_is_written_before_what_is_stale_is_forgotten():
    slow, attempts = Slow(), []
    slow.go.set()

    def make() -> Slow:
        attempts.append(None)
        if len(attempts) < 3:
            raise ConnectionError("not yet")
        return slow

    background = Background(make)
    background.forget_after(7)
    for number in range(7, 10):
        background.write([entry(number)])
    background.close()
    assert slow.done == ["forget after 7", "write 8", "write 9", "close"]
    assert background.lost == 1


# -- secrets


def test_a_secret_is_left_out_wherever_it_shows():
    secret = 'k"1'
    said = json.dumps({"api_key": secret, "q": "cats"})
    trace = [
        entry(outputs=said),
        entry(0, 1, "turn", "find cats", outputs=said, prompt_ids=[1, 2], token_ids=[3, 4], thought=f"use {secret}"),
        entry(0, 2, "tool", {"API_Key": secret, "q": "cats", "more": [{"api_key": ["deep"]}]}, outputs=f"{secret}?"),
        entry(0, 3, "turn", f"{said} was deep", outputs="so many cats", prompt_ids=[5], token_ids=[6]),
    ]
    clean = redact(trace, ["api_key"])
    assert secret not in repr([one.flat() for one in clean]) and "deep" not in repr(clean)
    assert json.dumps(secret)[1:-1] not in "".join(str(one.outputs) for one in clean)
    assert clean[2].inputs == {"API_Key": MARK, "q": "cats", "more": [{"api_key": [MARK]}]}
    assert (clean[1].attributes["prompt_ids"], clean[1].attributes["token_ids"]) == ([1, 2], None)
    assert (clean[3].attributes["prompt_ids"], clean[3].attributes["token_ids"]) == (None, [6])
    assert clean[1].inputs == "find cats"


@pytest.mark.parametrize("secret", [482913, -1.5, 'p\u00e4"ss', "back\\slash"])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_secret_may_be_a_number_or_have_any_letter(secret, ascii_only):
    said = json.dumps({"pin": secret, "q": "cats"}, ensure_ascii=ascii_only)
    trace = [
        entry(0, 1, "turn", "find cats", outputs=said, token_ids=[3, 4]),
        entry(0, 2, "tool", {"pin": secret, "more": {"PIN": [secret, True]}}, outputs="ok"),
    ]
    reply, tool = redact(trace, ["pin"])
    assert reply.outputs == json.dumps({"pin": "x", "q": "cats"}).replace(
        "x" if isinstance(secret, str) else '"x"', MARK
    )
    assert reply.attributes["token_ids"] is None
    assert tool.inputs == {"pin": MARK, "more": {"PIN": [MARK, True]}}


@pytest.mark.parametrize(
    ("secret", "said"),
    [
        ("ab/cd", r'{"pin": "ab\/cd"}'),
        ("p\u00e4ss", r'{"pin": "\u0070\u00E4ss"}'),
        ("\U0001f600!", r'{"pin": "\uD83D\uDE00!"}'),
        ('a"b\n', r'"{\"pin\": \"a\\\"b\\n\"}"'),  # arguments as a string of JSON
    ],
)
def test_a_secret_is_left_out_however_json_spells_it(secret: str, said: str):
    reply, _ = redact([entry(0, 1, "turn", outputs=said), entry(0, 2, "tool", {"pin": secret})], ["pin"])
    read = json.loads(reply.outputs)
    assert (json.loads(read) if isinstance(read, str) else read) == {"pin": MARK}


def test_a_row_of_backslashes_is_searched_in_no_time():
    said, secret = "\\" * 9000, "\\" * 40 + "x"
    reply, _ = redact([entry(0, 1, "turn", outputs=said), entry(0, 2, "tool", {"pin": secret})], ["pin"])
    assert reply.outputs == said


def test_without_secrets_a_trace_is_left_as_it_is():
    trace = [entry(), entry(0, 1, "tool", {"q": "cats", "api_key": ""})]
    assert redact(trace, ["api_key"]) == trace == redact(trace, [])


# -- the recipe


@pytest.mark.parametrize("log", [{"trace_every": 2}, {"redact": ["api_key"]}])
def test_what_does_nothing_is_refused(log: dict[str, Any]):
    (key,) = log
    with pytest.raises(ValueError, match=rf"log.{key}=.* does nothing while log.traces is empty"):
        parse_config({"log": log})
    assert parse_config({"log": {**log, "traces": ["jsonl"]}}).log.traces == ["jsonl"]


@pytest.mark.parametrize("agent", [{"use": "openai", "function": "a:b"}, {"use": "langgraph", "graph": "a:b"}])
def test_secrets_that_nobody_would_find_are_refused(agent: dict[str, Any]):
    tree = {"log": {"traces": ["jsonl"], "redact": ["api_key"]}, "data": {"generate": {"use": "arithmetic"}}}
    with pytest.raises(ValueError, match=r"log.redact=.* run where nobody sees them"):
        parse_config({**tree, "agent": agent})
    assert parse_config({**tree, "agent": {"use": "langgraph", "graph": "a:b", "tools": ["c:d"]}}).log.redact
