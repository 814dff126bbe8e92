"""Two players on the same levels."""

import json
from pathlib import Path

import pytest
from helpers import play_config
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from turnwise.compare import compare, difference_table
from turnwise.config import Config
from turnwise.episodes import Folder, Record, protocol_of
from turnwise.recipe import parse_config

SCORED = {"agent": {"use": "single_turn"}, "reward": {"use": "math_equal"}}


def keep(path: Path, told: dict[str, list[float]], player: str = "mine", **changes: object) -> Path:
    """A folder with an environment `name` for each list of progressions; the tasks a and b take turns."""
    suite: dict[str, Config] = {
        name: play_config("helpers:Ladder", environment=changes, evaluation={"episodes": len(values)})
        for name, values in told.items()
    }
    folder = Folder(path, protocol_of(player, "", suite))
    for name, values in told.items():
        for number, value in enumerate(values):
            record = Record("ab"[number % 2], number, 100 + number, None, value, 0.0, 1, 1, {}, 0)
            folder.add((player, name), record)
            folder.add(("random", name), Record("ab"[number % 2], number, 100 + number, None, 0.5, 0.0, 1, 1, {}, 0))
    return path


PROGRESSIONS = st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=2, max_size=8)
FEW = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(PROGRESSIONS, PROGRESSIONS)
@FEW
def test_a_folder_does_not_differ_from_itself(tmp_path_factory, one, other):
    folder = keep(tmp_path_factory.mktemp("same") / "a", {"x": one, "y": other})
    found = compare(folder, folder)
    assert [(row.environment, row.task) for row in found] == [
        *(("x", task) for task in ("a", "b", "")),
        *(("y", task) for task in ("a", "b", "")),
        ("overall", ""),
    ]
    for row in found:
        assert (row.gap.mean, row.wins, row.losses) == (0, 0, 0)
        assert row.gap.low == pytest.approx(-row.gap.high)
    assert found[-1].ties == len(one) + len(other)


@given(st.lists(st.tuples(*[st.sampled_from([0.0, 0.25, 1.0])] * 2), min_size=2, max_size=8))
@FEW
def test_the_other_way_round_everything_is_mirrored(tmp_path_factory, pairs):
    path = tmp_path_factory.mktemp("mirror")
    ours, theirs = ([pair[side] for pair in pairs] for side in (0, 1))
    a, b = keep(path / "a", {"x": ours}), keep(path / "b", {"x": theirs})
    for row, back in zip(compare(a, b), compare(b, a), strict=True):
        assert row.gap.mean == pytest.approx(-back.gap.mean)
        assert row.gap.low <= row.gap.mean + 1e-12 and row.gap.mean <= row.gap.high + 1e-12
        assert (row.wins, row.losses, row.ties) == (back.losses, back.wins, back.ties)
    whole = compare(a, b)[-1]
    assert whole.gap.mean == pytest.approx((sum(ours) - sum(theirs)) / len(pairs))
    assert whole.wins == sum(one > other for one, other in pairs)


def test_what_always_gets_further_is_further_for_sure(tmp_path):
    """Though the levels differ so much that the two means alone would tell nothing."""
    a = keep(tmp_path / "a", {"x": [0.2, 0.4, 0.6, 0.8, 1.0] * 2})
    b = keep(tmp_path / "b", {"x": [0.1, 0.3, 0.5, 0.7, 0.9] * 2}, "theirs")
    whole = compare(a, b)[-1]
    assert (whole.wins, whole.losses, whole.ties) == (10, 0, 0)
    assert whole.gap.low == pytest.approx(0.1) and whole.gap.high == pytest.approx(0.1)


def test_levels_that_all_ended_alike_leave_a_doubt(tmp_path):
    a = keep(tmp_path / "a", {"x": [1.0] * 10})
    whole = compare(a, keep(tmp_path / "b", {"x": [0.0] * 10}, "theirs"))[-1]
    assert (whole.gap.mean, whole.gap.high, whole.wins) == (1.0, 1.0, 10) and 0.4 < whole.gap.low < 1
    same = compare(a, a)[-1]
    assert same.gap.mean == 0 and same.gap.low < 0 < same.gap.high


def test_the_environments_weigh_alike(tmp_path):
    a, b = (
        keep(tmp_path / "a", {"x": [1.0] * 8, "y": [0.0] * 2}),
        keep(tmp_path / "b", {"x": [0.0] * 8, "y": [0.0] * 2}),
    )
    assert compare(a, b)[-1].gap.mean == pytest.approx(0.5)


def test_other_levels_are_refused(tmp_path):
    a, b = keep(tmp_path / "a", {"x": [1.0, 0.0, 1.0]}), keep(tmp_path / "b", {"x": [1.0, 0.0]})
    with pytest.raises(ValueError, match=r"same levels: x\.evaluation\.episodes was 3, now is 2"):
        compare(a, b)
    lines = (a / "episodes.jsonl").read_text().splitlines(keepends=True)
    fewer = keep(tmp_path / "fewer", {"x": [1.0, 0.0, 1.0]})
    (fewer / "episodes.jsonl").write_text("".join(lines[:4]))
    with pytest.raises(ValueError, match="did not play the same levels: 1 were played in one of them alone"):
        compare(a, fewer)
    other = keep(tmp_path / "c", {"x": [1.0, 0.0, 1.0]}, kwargs={"partial": True})
    with pytest.raises(ValueError, match=r"same levels: x\.kwargs\.partial"):
        compare(a, other)
    with pytest.raises(ValueError, match="same levels"):
        compare(a, keep(tmp_path / "d", {"y": [1.0, 0.0, 1.0]}))


def test_levels_that_were_passed_over_are_left_out_and_counted(tmp_path):
    """Level 3 failed, and another was played in its place."""
    a, b = (keep(tmp_path / name, {"x": [1.0, 0.0, 0.0, 1.0]}, name) for name in ("a", "b"))
    file = b / "episodes.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for one in lines:
        if one["number"] == 3:
            one |= {"number": 5, "seed": 105, "failures": 1}
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = compare(a, b)
    assert [(row.task, row.ties, row.alone) for row in found] == [("a", 2, 0), ("b", 1, 2), ("", 3, 2)]
    console = Console(width=120, record=True)
    console.print(difference_table(found, a, b))
    assert "left out, since an environment failed: 2 levels" in console.export_text()
    file.write_text("".join(json.dumps(line) + "\n" for line in lines if line["number"]))  # one is yet to be played
    with pytest.raises(ValueError, match="finish both"):
        compare(a, b)


def test_test_rows_that_one_could_not_play_are_left_out_where_there_was_none_to_play_instead(tmp_path):
    """As a row whose prompt is too long for one of two tokenizers."""
    a, b = (keep(tmp_path / name, {"x": [1.0, 0.0, 1.0]}, name) for name in ("a", "b"))
    (b / "episodes.jsonl").write_text("".join((b / "episodes.jsonl").read_text().splitlines(keepends=True)[:4]))
    for folder in (a, b):
        file = folder / "protocol.json"
        protocol = json.loads(file.read_text())
        protocol["environments"]["x"]["samples"] = "0123"
        file.write_text(json.dumps(protocol))
    (a / "results.json").write_text("[]")
    with pytest.raises(ValueError, match="finish both"):
        compare(a, b)
    (b / "results.json").write_text("[]")
    whole = compare(a, b)[-1]
    assert (whole.ties, whole.alone) == (2, 1)


def test_another_arithmetic_is_told_where_both_are_known(tmp_path):
    def told(*precisions: str) -> str:
        folders = []
        for name, precision in zip("ab", precisions, strict=True):
            folder = keep(tmp_path / "".join(precisions) / name, {"x": [1.0, 0.0]}, name)
            file = folder / "protocol.json"
            protocol = json.loads(file.read_text())
            protocol["environments"]["x"]["model"] |= {"precision": precision, "path": name}
            file.write_text(json.dumps(protocol))
            folders.append(folder)
        console = Console(width=120, record=True)
        console.print(difference_table(compare(*folders), *folders))
        return " ".join(console.export_text().split())

    assert "x.model.precision was 'bf16', now is 'fp32'" in told("bf16", "fp32")
    for same in (("bf16", "bf16"), ("bf16", "auto")):
        assert "differ:" not in told(*same)


def test_what_tells_no_progression_cannot_be_compared(tmp_path):
    folder = keep(tmp_path / "a", {"x": [1.0, 0.0]})
    file = folder / "episodes.jsonl"
    lines = [{**json.loads(line), "progression": None} for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ValueError, match="tells no progression"):
        compare(folder, folder)


def test_where_only_wins_are_told_the_other_levels_were_lost(tmp_path):
    """As an evaluation judges them; here the other folder has no win to tell of."""

    def told(name: str, wins: list[bool]) -> Path:
        folder = keep(tmp_path / name, {"x": [float(won) for won in wins]}, name)
        file, lines = folder / "episodes.jsonl", []
        for one in map(json.loads, (folder / "episodes.jsonl").read_text().splitlines()):
            won = one["player"] == name and one["progression"] == 1
            lines.append({**one, "success": won or None, "progression": 1.0 if won else None})
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return folder

    whole = compare(told("a", [True, True, False, True]), told("b", [False] * 4))[-1]
    assert (whole.gap.mean, whole.wins, whole.ties) == (0.75, 3, 1)


def test_a_folder_without_an_evaluation_is_named(tmp_path):
    with pytest.raises(ValueError, match="holds no evaluation"):
        compare(tmp_path, tmp_path)
    with pytest.raises(ValueError, match="holds no episode of mine"):
        empty = keep(tmp_path / "a", {})
        compare(empty, empty)


def test_the_table_names_players_and_what_else_differs(tmp_path):
    a = keep(tmp_path / "a", {"x": [1.0, 0.0]})
    b = keep(tmp_path / "b", {"x": [0.0, 0.0]}, "theirs", invalid_penalty=0.3)
    console = Console(width=120, record=True)
    console.print(difference_table(compare(a, b), a, b))
    text = " ".join(console.export_text().split())
    for part in ("mine less theirs", "x/a", "+1.000 [-0.122, +1.000]", "invalid_penalty was 0.1, now is 0.3"):
        assert part in text


def test_samples_of_other_data_are_other_levels_and_another_evaluation(tmp_path):
    def asked(name: str, seed: int) -> Folder:
        data = {"generate": {"use": "arithmetic", "test": 4, "seed": seed}, "prompt_key": "question"}
        suite = {"x": parse_config({"data": data, **SCORED, "evaluation": {"episodes": 1}})}
        return Folder(tmp_path / name, protocol_of("mine", "", suite))

    for name, seed in (("a", 0), ("b", 1)):
        asked(name, seed).add(("mine", "x"), Record("data", 0, 7, True, 1.0, 1.0, 1, 1, {}, 0))
    with pytest.raises(ValueError, match=r"same levels: x\.samples was "):
        compare(tmp_path / "a", tmp_path / "b")
    with pytest.raises(ValueError, match=r"data\.generate\.seed was 0, now is 1"):
        asked("a", 1)


@pytest.mark.parametrize("test", [True, False])
def test_what_is_trained_on_makes_no_other_levels_unless_they_are_held_out_of_it(tmp_path, test):
    for name in ("some", "more", "test"):
        rows = [json.dumps({"prompt": f"{name} {number}"}) for number in range(50)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    for name, train in (("a", {"train": "some", "max_samples": 1}), ("b", {"train": "more"})):
        data = {**train, "train": f"{tmp_path}/{train['train']}.jsonl"}
        data |= {"test": f"{tmp_path}/test.jsonl"} if test else {"held_out": 0.2}
        suite = {"x": parse_config({"data": data, **SCORED, "evaluation": {"episodes": 1}})}
        folder = Folder(tmp_path / name, protocol_of("mine", "", suite))
        folder.add(("mine", "x"), Record("data", 0, 7, True, 1.0, 1.0, 1, 1, {}, 0))
    if test:
        assert compare(tmp_path / "a", tmp_path / "b")[-1].ties == 1
    else:
        with pytest.raises(ValueError, match=r"same levels: x\.samples was "):
            compare(tmp_path / "a", tmp_path / "b")


def test_other_rows_under_the_same_name_are_another_evaluation(tmp_path):
    data = {"train": [str(tmp_path / "train.jsonl")], "test": str(tmp_path / "test.jsonl")}
    (tmp_path / "train.jsonl").write_text('{"prompt": "What?"}\n')

    def asked() -> Folder:
        suite = {"x": parse_config({"data": data, **SCORED, "evaluation": {"episodes": 1}})}
        return Folder(tmp_path / "out", protocol_of("mine", "", suite))

    (tmp_path / "test.jsonl").write_text('{"prompt": "Where?"}\n')
    asked().add(("mine", "x"), Record("data", 0, 7, True, 1.0, 1.0, 1, 1, {}, 0))
    assert asked().episodes
    (tmp_path / "test.jsonl").write_text('{"prompt": "When?"}\n')
    with pytest.raises(ValueError, match=r"another player or configuration \(environments\.x\.samples was "):
        asked()
