"""The same rows from every format, and one sentence for each file that is broken."""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turnwise.data.read import find_files, read_rows

ROWS = [
    {"prompt": "What is 2 + 2?", "ground_truth": "4"},
    {"prompt": 'Say "é,\n\N{WAVING HAND SIGN}".', "ground_truth": "é"},
]


def write(path: Path, rows: list[Any]) -> Path:
    if path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(sys.modules["pyarrow"].Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def read(path: Path) -> list[Any]:
    return [row for _, row in read_rows(path)]


def mistake(path: Path) -> str:
    with pytest.raises(ValueError) as caught:
        read(path)
    assert type(caught.value) is ValueError and len(str(caught.value).splitlines()) == 1
    return str(caught.value)


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.json", "a.csv", "a.parquet"])
def test_every_format_gives_the_same_rows(tmp_path, name):
    assert read(write(tmp_path / name, ROWS)) == ROWS


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.dictionaries(st.text(max_size=3), JSON, max_size=4), max_size=5))
def test_rows_of_json_are_what_was_written(tmp_path, rows):
    assert read(write(tmp_path / "a.json", rows)) == rows
    path = tmp_path / "a.jsonl"
    path.write_text("\n\n".join(map(json.dumps, rows)))
    assert read(path) == rows


def test_a_json_file_may_be_lines(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    assert read(path) == [{"a": 1}, {"a": 2}]


def test_parquet_rows_keep_their_own_fields(tmp_path):
    """A file has one set of fields for all its rows; those that a row did not have come back as nothing."""
    rows = [
        {"prompt": "a", "extra_info": {"tools_kwargs": {"one": {"create_kwargs": {"x": 1}}}}},
        {"prompt": "b", "extra_info": {"tools_kwargs": {"two": {"create_kwargs": {"y": [1, 2]}}}}},
    ]
    assert read(write(tmp_path / "a.parquet", rows)) == rows


def test_without_pyarrow_parquet_says_what_to_install(tmp_path, monkeypatch):
    for name in ["pyarrow", *(loaded for loaded in sys.modules if loaded.startswith("pyarrow."))]:
        monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "a.parquet").write_bytes(b"")
    assert "pip install -e '.[data]'" in mistake(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", '{"a": 1}\n\n{"a": }\n', ["a.jsonl, line 3", "not JSON"]),
        ("a.jsonl", '{"a": NaN}\n', ["line 1", "NaN"]),
        ("a.jsonl", '{"a": 1}\n{"a": {"b": 1, "b": 2}}\n', ["a.jsonl, line 2", "the key 'b' twice; leave one out"]),
        ("a.jsonl", "[" * 100_000, ["line 1", "not JSON"]),
        ("a.json", "[{}", ["a.json", "not JSON"]),
        ("a.csv", "a,b\n1,2\n1\n", ["a.csv, row 2", "cells"]),
        ("a.csv", "a,b\n1,2,3\n", ["a.csv, row 1", "cells"]),
        ("a.csv", "a,b,a\n1,2,3\n", ["a.csv", "column a twice"]),
        ("a.csv", 'a\n"b\n', ["a.csv", "not CSV"]),
        ("a.jsonl", b'{"a": "\xff"}', ["a.jsonl", "UTF-8"]),
    ],
)
def test_a_broken_file_is_one_sentence_with_its_place(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    message = mistake(path)
    assert [word for word in words if word not in message] == [], message


def test_a_file_that_is_not_parquet_is_one_sentence(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "a.parquet").write_text("no")
    assert "a.parquet cannot be read as Parquet" in mistake(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("column", "kind", "words"),
    [
        ([[("k", 1), ("k", 2)]], "map<string, int64>", "duplicate key was 'k'"),
        ([1], "timestamp[ns]", "Nanosecond resolution"),
    ],
)
def test_a_value_that_parquet_cannot_hand_over_is_one_sentence(tmp_path, monkeypatch, column, kind, words):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    kinds = {
        "map<string, int64>": pyarrow.map_(pyarrow.string(), pyarrow.int64()),
        "timestamp[ns]": pyarrow.timestamp("ns"),
    }
    parquet.write_table(pyarrow.table({"odd": pyarrow.array(column, kinds[kind])}), tmp_path / "a.parquet")
    # Which would take nanoseconds; when pyarrow first looks for it, it must be missing in earnest.
    monkeypatch.setitem(sys.modules, "pandas", None)
    message = mistake(tmp_path / "a.parquet")
    assert "a.parquet cannot be read as Parquet" in message and words in message


def test_a_damaged_page_of_parquet_is_one_sentence(tmp_path):
    path = write(tmp_path / "a.parquet", [{"prompt": "What is 2 + 2?"}])
    content = bytearray(path.read_bytes())
    content[20:60] = (byte ^ 0xFF for byte in content[20:60])
    path.write_bytes(content)
    assert "a.parquet cannot be read as Parquet" in mistake(path)


def test_a_column_that_parquet_names_twice_is_refused(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = [pyarrow.array(["one"]), pyarrow.array(["other"])]
    parquet.write_table(pyarrow.Table.from_arrays(columns, ["prompt", "prompt"]), tmp_path / "a.parquet")
    assert "a.parquet cannot be read as Parquet: it names the column prompt twice" in mistake(tmp_path / "a.parquet")


# -- which files


def test_files_folders_and_patterns_keep_their_order(tmp_path):
    for name in ("b.jsonl", "a.csv", "notes.txt", "c-2.json", "c-1.json"):
        (tmp_path / name).write_text("")
    (tmp_path / "inner.json").mkdir()

    def names(*patterns: str) -> list[str]:
        return [file.name for file in find_files("data.train", [str(tmp_path / one) for one in patterns])]

    assert names("b.jsonl", "a.csv") == ["b.jsonl", "a.csv"]
    assert names("c-*.json") == ["c-1.json", "c-2.json"]
    assert names(".") == ["a.csv", "b.jsonl", "c-1.json", "c-2.json"]


@pytest.mark.parametrize(
    ("patterns", "words"),
    [
        (["no.jsonl"], ["data.train is", "no.jsonl", "no file"]),
        (["notes.txt"], ["data.train is", "notes.txt", ".parquet", ".csv"]),
        (["empty"], ["empty", "no file"]),
        (["a.json", "*.json"], ["a.json twice"]),
        (["a.json", "empty/../a.json"], ["a.json twice"]),
    ],
)
def test_files_that_are_not_there_are_one_sentence(tmp_path, patterns, words):
    (tmp_path / "empty").mkdir()
    for name in ("notes.txt", "a.json"):
        (tmp_path / name).write_text("")
    with pytest.raises(ValueError) as caught:
        find_files("data.train", [str(tmp_path / one) for one in patterns])
    assert [word for word in words if word not in str(caught.value)] == [], caught.value
