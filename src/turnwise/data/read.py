"""Rows from Parquet, JSON Lines, JSON and CSV files. Nothing in a file is run: no pickle, no loading script.

Parquet is read by pyarrow alone (pip install -e '.[data]'); Hugging Face's `datasets` would bring 26 packages and
take a second to import.
"""

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from glob import glob
from pathlib import Path
from typing import Any

from turnwise.optional import optional

Row = dict[str, Any]
Place = str  # file and row, for the sentence that says what is wrong with it


def find_files(key: str, patterns: Sequence[str]) -> list[Path]:
    """The files that paths, folders and patterns name, in the order given, those of a folder by name."""
    found = [file for pattern in patterns for file in _matching(key, pattern)]
    places = [file.resolve() for file in found]
    twice = next((file for number, file in enumerate(found) if places[number] in places[:number]), None)
    if twice:
        raise ValueError(f"{key} names {twice} twice; leave one out")
    return found


def _matching(key: str, pattern: str) -> list[Path]:
    path = Path(pattern)
    if path.is_file():
        if path.suffix not in _READERS:
            raise ValueError(f"{key} is {pattern!r}, but files of rows end in {', '.join(_READERS)}")
        return [path]
    candidates = path.iterdir() if path.is_dir() else map(Path, glob(pattern))
    files = sorted(file for file in candidates if file.suffix in _READERS and file.is_file())
    if not files:
        raise ValueError(f"{key} is {pattern!r}, where there is no file that ends in {', '.join(_READERS)}")
    return files


def read_rows(path: Path) -> Iterator[tuple[Place, Any]]:
    """The rows of a file, each with its place, yet to be checked. Raises ValueError, of one sentence."""
    try:
        yield from _READERS[path.suffix](path)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error


def _jsonl(path: Path) -> Iterator[tuple[Place, Any]]:
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                place = f"{path}, line {number}"
                yield place, _parsed(place, line)


def _json(path: Path) -> Iterator[tuple[Place, Any]]:
    """A list of objects. Some files called .json are JSON Lines."""
    text = path.read_text(encoding="utf-8-sig")
    if not text.lstrip().startswith("["):
        yield from _jsonl(path)
        return
    for number, row in enumerate(_parsed(str(path), text), 1):
        yield f"{path}, row {number}", row


def _parsed(place: Place, text: str) -> Any:
    try:
        return from_json(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place} is not JSON: {error}") from error


def from_json(text: str) -> Any:
    """Raises ValueError, also where a key stands twice, and RecursionError."""
    return json.loads(text, parse_constant=_no_number, object_pairs_hook=_object)


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no JSON number")


def _object(pairs: list[tuple[str, Any]]) -> Row:
    if twice := _repeated([key for key, _ in pairs]):
        raise ValueError(f"an object has the key {twice!r:.80} twice; leave one out")
    return dict(pairs)


def _csv(path: Path) -> Iterator[tuple[Place, Row]]:
    with path.open(encoding="utf-8-sig", newline="") as lines:
        try:
            rows = csv.DictReader(lines, strict=True)
            if twice := _repeated(rows.fieldnames or ()):
                raise ValueError(f"{path} names the column {twice} twice; leave one out")
            for number, row in enumerate(rows, 1):
                if None in row or None in row.values():
                    raise ValueError(f"{path}, row {number} has not as many cells as the first line names columns")
                yield f"{path}, row {number}", row
        except csv.Error as error:
            raise ValueError(f"{path} is not CSV: {error}") from error


def _repeated(columns: Sequence[str]) -> str | None:
    return next((name for name, times in Counter(columns).items() if times > 1), None)


def _parquet(path: Path) -> Iterator[tuple[Place, Row]]:
    pyarrow = optional("pyarrow", "data")
    parquet = optional("pyarrow.parquet", "data")
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            if twice := _repeated(file.schema_arrow.names):
                raise ValueError(f"it names the column {twice} twice; leave one out")
            for batch in file.iter_batches(batch_size=1024):
                for row in batch.to_pylist(maps_as_pydicts="strict"):
                    number += 1
                    yield f"{path}, row {number}", _without_nothing(row)
    except (pyarrow.ArrowException, KeyError, OSError, ValueError) as error:  # the last three of pages and values
        raise ValueError(f"{path} cannot be read as Parquet: {' '.join(str(error).split())}") from error


def _without_nothing(value: Any) -> Any:
    """Parquet gives every row the fields of all, as null where a row had none; so a null field is no field."""
    if isinstance(value, dict):
        return {key: _without_nothing(one) for key, one in value.items() if one is not None}
    return [_without_nothing(one) for one in value] if isinstance(value, list) else value


_READERS: dict[str, Callable[[Path], Iterator[tuple[Place, Any]]]] = {
    ".parquet": _parquet,
    ".jsonl": _jsonl,
    ".ndjson": _jsonl,
    ".json": _json,
    ".csv": _csv,
}
