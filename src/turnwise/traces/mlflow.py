"""MLflow (pip install -e '.[mlflow]'): an episode is a trace, in the experiment that is named as the run's folder.

MLFLOW_TRACKING_URI says where it lives; without, it is mlflow.db in the folder of the run.
"""

import hashlib
import os
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from turnwise.optional import optional
from turnwise.traces.entries import Entry

_TYPES = {"episode": "AGENT", "turn": "CHAIN", "generation": "LLM", "tool": "TOOL"}
_RUN, _NUMBER = "turnwise_run", "turnwise_trace"
_TAGS = ("step", "slot", "group", "episode", "task", "end", "episode_return")
_PAGE = 100  # traces, the most that one call deletes


class MLflow:
    def __init__(self, folder: Path):
        self._mlflow = optional("mlflow", "mlflow")
        folder = folder.resolve()
        self._owns = "MLFLOW_TRACKING_URI" not in os.environ
        if self._owns:
            self._mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
        self._client = self._mlflow.MlflowClient()
        # A server may know other runs of this name; what lies in the run's folder goes where that goes.
        place = "" if self._owns else f"{platform.node()}:{folder}"
        self._run = hashlib.blake2b(place.encode(), digest_size=8).hexdigest()
        self._experiment = self._open_experiment(folder)

    def _open_experiment(self, folder: Path) -> str:
        known = self._client.get_experiment_by_name(folder.name)
        if known is not None:
            return known.experiment_id
        artifacts = (folder / "mlartifacts").as_uri() if self._owns else None
        return self._client.create_experiment(folder.name, artifact_location=artifacts)

    def write(self, trace: Sequence[Entry]) -> None:
        spans: dict[int, Any] = {}
        for entry in trace:
            spans[entry.span] = self._start(entry, None if entry.parent is None else spans[entry.parent])
        for entry in reversed(trace):
            about = entry.attributes
            status = "ERROR" if about.get("error") or about.get("failure") else "OK"
            spans[entry.span].end(outputs=entry.outputs, status=status, end_time_ns=_ns(entry.end_s))
        # MLflow keeps its failures to itself; a trace that did not arrive cannot be read back.
        self._client.get_trace(spans[0].trace_id, display=False, flush=True)

    def _start(self, entry: Entry, parent: Any) -> Any:
        about = {key: value for key, value in entry.attributes.items() if value is not None}
        tags = {_RUN: self._run, _NUMBER: str(entry.trace), **{key: str(about[key]) for key in _TAGS if key in about}}
        return self._mlflow.start_span_no_context(
            name=entry.name or entry.kind,
            span_type=_TYPES.get(entry.kind, "UNKNOWN"),
            parent_span=parent,
            inputs=entry.inputs,
            attributes=about,
            tags=tags if parent is None else None,
            experiment_id=self._experiment if parent is None else None,
            start_time_ns=_ns(entry.start_s),
        )

    def forget_after(self, traces: int) -> None:
        stale = [one.info.trace_id for one in self._mine() if int(one.info.tags[_NUMBER]) >= traces]
        for start in range(0, len(stale), _PAGE):
            self._client.delete_traces(self._experiment, trace_ids=stale[start : start + _PAGE])

    def _mine(self) -> Iterator[Any]:
        """The traces of this run."""
        token = None
        while True:
            page = self._client.search_traces(
                locations=[self._experiment],
                filter_string=f"tag.{_RUN} = '{self._run}'",
                max_results=_PAGE,
                page_token=token,
                include_spans=False,
            )
            yield from page
            token = page.token
            if not token:
                return

    def close(self) -> None:
        """The next run in this process has a store of its own."""
        if self._owns:
            self._mlflow.set_tracking_uri(None)


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
