"""Traces and the figures of agents in the folder of a run."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from test_recording import Asking

from turnwise.config import Config
from turnwise.protocols import Session
from turnwise.recipe import parse_config
from turnwise.train import Training, train
from turnwise.types import Ending


class Counting(Asking):
    """Counts what a tool agent might."""

    async def run(self, session: Session) -> Ending:
        session.count("tools/ok", 2.0)
        return await super().run(session)


def run_config(folder: Path, model: Path, **log: Any) -> Config:
    return parse_config(
        {
            "run": str(folder),
            "steps": 4,
            "model": {"path": str(model), "precision": "fp32", "device": "cpu"},
            "environment": {"id": "helpers:Counter", "workers": "inline"},
            "agent": {"use": "test_runs:Counting"},
            "rollout": {"n_env": 2, "e_len": 2, "max_reply_tokens": 3, "max_prompt_tokens": 400},
            "update": {"minibatch": 2},
            "warmup": {"w_epoch": 0},
            "checkpoint": {"every": 2},
            "log": log,
        }
    )


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    """All but the times."""
    told = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    return [
        {key: value for key, value in line.items() if not key.startswith("time/") and key not in ("start_s", "end_s")}
        for line in told
    ]


def test_a_resumed_run_leaves_the_traces_of_one_that_did_not_stop(tiny_folder: Path, tmp_path: Path):
    log = {"traces": ["jsonl"], "trace_every": 1}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(run_config(whole, tiny_folder, **log))
    training = Training(run_config(killed, tiny_folder, **log), resume=False)
    for _ in range(3):  # the third is not saved
        training.step()
    training.collector.close()
    written = len(lines(killed, "traces.jsonl"))
    train(run_config(killed, tiny_folder, **log), resume=True)
    assert lines(killed, "traces.jsonl") == lines(whole, "traces.jsonl")
    assert lines(killed, "metrics.jsonl") == lines(whole, "metrics.jsonl")
    episodes = [line for line in lines(whole, "traces.jsonl") if line["kind"] == "episode"]
    # Episodes of three turns end in the second, third and fourth batch of two turns a slot, one or two a slot.
    assert [one["step"] for one in episodes] == sorted(one["step"] for one in episodes)
    assert {one["step"] for one in episodes} == {2, 3}
    assert 0 < written <= len(lines(whole, "traces.jsonl"))


def test_what_agents_count_reaches_the_metrics_and_the_trackers(tiny_folder: Path, tmp_path: Path):
    heard: list[Mapping[str, float]] = []

    class Ear:
        def log(self, metrics: Mapping[str, float], step: int) -> None:
            heard.append(dict(metrics))

    training = Training(run_config(tmp_path, tiny_folder), resume=False)
    training.trackers.append(Ear())
    training.step()
    training.step()
    training.collector.close()
    logged = lines(tmp_path, "metrics.jsonl")
    assert ["tools/ok" in line for line in logged] == [False, True]  # no episode ends in the first batch
    assert logged[1]["tools/ok"] == heard[1]["tools/ok"] == 2.0
    assert logged[1]["groups/left_out"] == heard[1]["groups/left_out"] == 0
    assert not (tmp_path / "traces.jsonl").exists()
