"""A real store of MLflow, written and read back."""

from pathlib import Path
from typing import Any

import pytest
from entries import entry

mlflow: Any = pytest.importorskip("mlflow")

from turnwise.traces.entries import Entry  # noqa: E402
from turnwise.traces.mlflow import MLflow  # noqa: E402


def episode(number: int, failure: str = "") -> list[Entry]:
    about = {"step": 3, "slot": 1, "group": 0, "episode": number, "task": "goto", "failure": failure}
    return [
        entry(number, 0, "episode", "Where?", outputs="There.", **about),
        entry(number, 1, "turn", "Where?", outputs="There.", reward=0.5, token_ids=(1, 2)),
        Entry(number, 2, 1, "generation", "generate", 1.0, 1.25, None, None, {"tokens": 2}),
        Entry(number, 3, 1, "tool", "look", 1.25, 1.5, {"at": "ü"}, "a key", {"status": "ok", "error": ""}),
    ]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path / "run"


def test_an_episode_is_a_trace_that_can_be_read_back_and_forgotten(folder: Path):
    folder.mkdir()
    tracer = MLflow(folder)
    for number in range(3):
        tracer.write(episode(number, "it broke" if number == 2 else ""))
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("run").experiment_id
    traces = client.search_traces(locations=[experiment])
    assert len(traces) == 3
    trace = next(one for one in traces if one.info.tags["turnwise_trace"] == "1")
    assert (trace.info.tags["task"], trace.info.tags["step"]) == ("goto", "3")
    spans = {span.name: span for span in trace.data.spans}
    assert spans["episode"].parent_id is None
    assert spans["turn"].parent_id == spans["episode"].span_id
    assert spans["generate"].parent_id == spans["look"].parent_id == spans["turn"].span_id
    assert (spans["look"].inputs, spans["look"].outputs, spans["look"].span_type) == ({"at": "ü"}, "a key", "TOOL")
    assert (spans["look"].start_time_ns, spans["look"].end_time_ns) == (1_250_000_000, 1_500_000_000)
    assert spans["turn"].attributes["reward"] == 0.5
    broken = next(one for one in traces if one.info.tags["turnwise_trace"] == "2")
    assert (str(broken.info.state), str(trace.info.state)) == ("ERROR", "OK")
    tracer.forget_after(1)
    left = client.search_traces(locations=[experiment])
    assert [one.info.tags["turnwise_trace"] for one in left] == ["0"]
    tracer.close()
    assert {file.name for file in folder.iterdir()} == {"mlflow.db"}


def test_a_trace_that_does_not_arrive_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch):
    folder.mkdir()
    tracer = MLflow(folder)
    (folder / "mlflow.db").write_bytes(b"no database")
    with pytest.raises(Exception):  # noqa: B017  (whatever MLflow raises)
        tracer.write(episode(0))
    tracer.close()
