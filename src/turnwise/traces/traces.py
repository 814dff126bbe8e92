"""The traces of a run: numbered, described, redacted, and told to those that the recipe names."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from turnwise.config import LogConfig
from turnwise.optional import optional
from turnwise.protocols import Tracer
from turnwise.traces.background import Background
from turnwise.traces.entries import Text, describe
from turnwise.traces.jsonl import Jsonl
from turnwise.traces.mlflow import MLflow
from turnwise.traces.recording import Trace
from turnwise.traces.redact import redact


class Traces:
    def __init__(self, config: LogConfig, folder: Path, text: Text):
        """`text` decodes token ids. A ValueError where a package is missing."""
        self.told = 0  # so far
        self._redacted = config.redact
        self._text = text
        self._background: Background | None = None
        self._tracers: list[Tracer] = []
        self._heard = 0  # traces whose loss was told
        if "jsonl" in config.traces:
            self._tracers.append(Jsonl(folder))
        if "mlflow" in config.traces:
            optional("mlflow", "mlflow")
            self._background = Background(partial(MLflow, folder))
            self._tracers.append(self._background)

    def tell(self, traces: Sequence[Trace], step: int) -> None:
        """Of the episodes that ended in the batch of this step."""
        for trace in traces:
            entries = redact(describe(trace, self.told, step, self._text), self._redacted)
            for tracer in self._tracers:
                tracer.write(entries)
            self.told += 1

    def go_on_from(self, told: int) -> None:
        """The first so many traces are of the past; later ones are forgotten, since they are about to happen again."""
        self.told = told
        for tracer in self._tracers:
            tracer.forget_after(told)

    @property
    def figures(self) -> dict[str, float]:
        """For the metrics, where a trace can be lost."""
        return {"traces/lost": self._background.lost} if self._background else {}

    def trouble(self) -> str:
        """What was lost since the last call, as one sentence; empty if nothing was."""
        if self._background is None or self._background.lost == self._heard:
            return ""
        self._heard = self._background.lost
        return f"{self._heard} traces have not reached MLflow: {self._background.trouble}"

    def close(self) -> None:
        """Wait for what is under way, but not for ever."""
        with ExitStack() as stack:
            for tracer in self._tracers:
                stack.callback(tracer.close)
