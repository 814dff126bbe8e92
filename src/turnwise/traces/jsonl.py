"""traces.jsonl in the folder of a run: a line a span."""

import json
from collections.abc import Sequence
from pathlib import Path

from turnwise.traces.entries import Entry


class Jsonl:
    def __init__(self, folder: Path):
        self._file = folder / "traces.jsonl"

    def write(self, trace: Sequence[Entry]) -> None:
        with self._file.open("a", encoding="utf-8") as stream:
            stream.writelines(json.dumps(entry.flat()) + "\n" for entry in trace)

    def forget_after(self, traces: int) -> None:
        if not self._file.exists():
            return
        with self._file.open("rb+") as stream:
            kept = 0
            # The last line may be half a line; it belongs to what is forgotten.
            for line in stream:
                if not line.endswith(b"\n") or json.loads(line)["trace"] >= traces:
                    break
                kept += len(line)
            stream.truncate(kept)

    def close(self) -> None:
        """Nothing is open between two traces."""
