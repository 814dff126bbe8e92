"""A suite is played in full, in the order asked for; a killed one ends up with the same files."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import Ladder, play_config
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.config import Config, DataConfig, LogConfig, ModelConfig
from turnwise.engines.chat import Conversation
from turnwise.envs.checked import CheckedEnvironment
from turnwise.episodes import Folder, protocol_of, read_episodes
from turnwise.evaluate import eval_seed
from turnwise.memory.window import Window
from turnwise.models import open_model
from turnwise.players import OTHERS, Model
from turnwise.recipe import differences
from turnwise.render import Renderer
from turnwise.results import files_of, rows_of
from turnwise.suite import load_suite, play_suite, split_missing
from turnwise.types import Generation, Sampling


class Moody:
    """Goes up two times in three, else mumbles: by the seed of the reply alone."""

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, request_id: str = "") -> Generation:
        await asyncio.sleep(0)  # so that the episodes of several slots end in turn
        return Generation(Conversation().reply("ACTION: up" if sampling.seed % 3 else "Hm."), (), "stop", 0)

    def load(self, weights: Any, version: int) -> None:
        raise AssertionError


LADDER = {"environment": {"id": "helpers:Ladder"}}
MODEL = Model(Moody(), Conversation())
PLAYERS = {"moody": lambda _: MODEL, **OTHERS}


def ladders(episodes: int = 5, slots: int = 4) -> dict[str, Config]:
    evaluation = {"episodes": episodes, "slots": slots}
    kinds = {"whole": {"fragile": True}, "partial": {"partial": True}}
    tasks = {"left": {}, "right": {}}
    return {
        name: play_config(
            "helpers:Ladder", environment={"kwargs": kwargs, "tasks": tasks, "reward": "native"}, evaluation=evaluation
        )
        for name, kwargs in kinds.items()
    }


def play(suite: Mapping[str, Config], path: Path) -> tuple[str, int]:
    """All players in a folder. Returns the lines as they were appended, and how many episodes were played."""
    played = []
    folder = Folder(path, protocol_of("moody", "", suite))
    episodes = play_suite(suite, PLAYERS, folder, lambda *_: None, lambda: played.append(1), lambda *_: None)
    appended = (path / "episodes.jsonl").read_text()
    folder.finish(episodes, files_of(rows_of(episodes), suite, []))
    return appended, len(played)


def contents(folder: Path) -> dict[str, str]:
    files = (file for file in sorted(folder.rglob("*")) if file.is_file())
    return {str(file.relative_to(folder)): file.read_text() for file in files}


def test_each_player_plays_each_environment_on_the_same_levels():
    suite = ladders()
    begun = []
    episodes = play_suite(suite, PLAYERS, None, lambda *told: begun.append(told), lambda: None, lambda *_: None)
    assert list(episodes) == [(player, name) for player in PLAYERS for name in suite]
    assert [key for key, _, _ in begun] == [(player, name) for name in suite for player in PLAYERS]
    assert {told[1:] for told in begun} == {(10, 0)}
    for name in suite:
        levels = [[(r.task, r.number, r.seed) for r in episodes[player, name]] for player in PLAYERS]
        assert levels[0] == levels[1] == levels[2]
        assert all(seed == eval_seed(task, number) for task, number, seed in levels[0])
    assert any(record.failures for record in episodes["moody", "whole"])  # so that what follows is not vacuous
    assert all(record.number < 5 for record in episodes["moody", "partial"])


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> tuple[str, dict[str, str]]:
    """The lines in the order in which episodes ended, and the files in the end."""
    folder = tmp_path_factory.mktemp("whole")
    appended, played = play(ladders(), folder)
    assert played == 60
    return appended, contents(folder)


@pytest.fixture(scope="module")
def whole(uninterrupted) -> dict[str, str]:
    return uninterrupted[1]


def test_lines_are_put_in_order_in_the_end(uninterrupted):
    """Else the next test would show less than it says."""
    appended, files = uninterrupted
    assert sorted(appended.splitlines()) == sorted(files["episodes.jsonl"].splitlines())
    assert appended != files["episodes.jsonl"]


@given(share=st.floats(0, 1))
@settings(max_examples=20)
def test_an_evaluation_killed_anywhere_goes_on_to_the_same_files(uninterrupted, tmp_path_factory, share):
    appended, files = uninterrupted
    folder = tmp_path_factory.mktemp("killed")
    (folder / "protocol.json").write_text(files["protocol.json"])
    left = appended[: int(share * len(appended))]
    (folder / "episodes.jsonl").write_text(left)
    (folder / "transcripts").mkdir()
    for line in map(json.loads, left.splitlines()[: left.count("\n")]):
        name = f"transcripts/{line['environment']}-{line['task']}-{line['number']:05}.txt"
        if line["player"] == "moody" and name in files:
            (folder / name).write_text(files[name])
    _, played = play(ladders(), folder)
    assert played == 60 - left.count("\n")
    assert contents(folder) == files


def test_a_finished_evaluation_is_not_played_again(whole, tmp_path):
    play(ladders(), tmp_path)
    _, played = play(ladders(), tmp_path)
    assert played == 0
    assert contents(tmp_path) == whole


def test_a_folder_of_another_configuration_is_refused(tmp_path):
    play(ladders(2), tmp_path)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=r"whole\.evaluation\.episodes was 2, now is 3"):
        Folder(tmp_path, protocol_of("moody", "", ladders(3)))
    with pytest.raises(ValueError, match="player was 'moody', now is 'grim'"):
        Folder(tmp_path, protocol_of("grim", "", ladders(2)))
    with pytest.raises(ValueError, match="weights was '', now is '000010"):
        Folder(tmp_path, protocol_of("moody", "000010", ladders(2)))
    assert contents(tmp_path) == before


def test_a_folder_in_which_nothing_was_played_is_free(tmp_path):
    Folder(tmp_path, protocol_of("mispelt", "", ladders(2)))
    play(ladders(2), tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="which is no folder"):
        Folder(tmp_path / "file", protocol_of("moody", "", ladders(2)))


def test_a_level_that_stands_there_twice_is_named(tmp_path):
    """It would count twice, and intervals would be too narrow."""
    play(ladders(), tmp_path)
    file = tmp_path / "episodes.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([*lines, lines[3]]))
    with pytest.raises(
        ValueError, match=rf"line {len(lines) + 1} of .*episodes\.jsonl has a level that an earlier line"
    ):
        play(ladders(), tmp_path)


@pytest.mark.parametrize("line", ["{}", "[]", "null", '{"player":'])
def test_a_damaged_line_is_named(tmp_path, line):
    play(ladders(2), tmp_path)
    file = tmp_path / "episodes.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([*lines[:3], f"{line}\n", *lines[4:]]))
    with pytest.raises(ValueError, match=r"line 4 of .*episodes\.jsonl is damaged"):
        Folder(tmp_path, protocol_of("moody", "", ladders(2)))


def test_a_player_that_an_environment_lacks_is_left_out_unless_it_was_asked_for():
    suite = {"free": play_config("helpers:AnyCounter", environment={"kwargs": {"limit": 1}, "reward": "native"})}
    suite["free"].evaluation.episodes = 1
    told = (lambda *_: None, lambda: None, lambda *_: None)
    assert list(play_suite(suite, PLAYERS, None, *told)) == [("moody", "free")]
    with pytest.raises(ValueError, match="free cannot be played by random"):
        play_suite(suite, OTHERS, None, *told)


class Unfinished(Ladder):
    """Has an expert only by name."""

    def expert(self) -> str:
        raise NotImplementedError


def test_another_player_that_fails_takes_nothing_from_the_first():
    environment = {"kwargs": {"partial": True}, "reward": "native", "max_failures": 2}
    suite = {"one": play_config(f"{__name__}:Unfinished", environment=environment, evaluation={"episodes": 2})}
    missed = []
    told = (lambda *_: None, lambda: None, lambda *told: missed.append(told))
    players = {**PLAYERS, **OTHERS}
    episodes = play_suite(suite, players, None, *told)
    assert [player for player, _ in episodes] == [name for name in players if name != "expert"]
    ((key, why),) = missed
    assert key == ("expert", "one") and "NotImplementedError" in why
    with pytest.raises(ValueError, match="NotImplementedError"):
        play_suite(suite, {"expert": OTHERS["expert"]}, None, *told)


class Weary(Ladder):
    """Has an expert that gives up in the second level."""

    levels = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        Weary.levels += 1
        return super().reset(seed=seed)

    def expert(self) -> str:
        if Weary.levels > 1:
            raise RuntimeError("no more")
        return "up"


def test_what_a_player_played_before_it_failed_is_kept_and_not_told(tmp_path, monkeypatch):
    environment = {"kwargs": {"partial": True}, "reward": "native", "max_failures": 1}
    suite = {"one": play_config(f"{__name__}:Weary", environment=environment, evaluation={"episodes": 3, "slots": 1})}
    folder = Folder(tmp_path, protocol_of("moody", "", suite))
    players = {"moody": PLAYERS["moody"], "expert": OTHERS["expert"]}
    monkeypatch.setattr(Weary, "levels", 0)
    begin = lambda key, *_: monkeypatch.setattr(Weary, "levels", 0)  # noqa: E731
    episodes = play_suite(suite, players, folder, begin, lambda: None, lambda *_: None)
    folder.finish(episodes, {})
    assert list(episodes) == [("moody", "one")]
    kept = read_episodes(tmp_path)
    assert {key: len(records) for key, records in kept.items()} == {("moody", "one"): 3, ("expert", "one"): 1}


# -- what suites say


def write(folder: Path, tree: Any) -> Path:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def test_overrides_are_for_one_environment_or_for_all(tmp_path):
    block = {"environment": {"id": "helpers:Ladder"}, "evaluation": {"episodes": 7}}
    path = write(tmp_path, {"one": block, "other": block})
    suite = load_suite(path, ["evaluation.slots=3", "other.evaluation.episodes=2"], {"model": {"path": "mine"}})
    assert {name: (c.evaluation.slots, c.evaluation.episodes) for name, c in suite.items()} == {
        "one": (3, 7),
        "other": (3, 2),
    }
    assert {config.model.path for config in suite.values()} == {"mine"}


def test_the_blocks_of_a_suite_replace_what_a_player_brings(tmp_path):
    path = write(tmp_path, {"one": {"environment": {"id": "helpers:Ladder"}, "memory": {"use": "full"}}})
    suite = load_suite(path, [], {"memory": {"use": "window", "turns": 3}, "parser": {"cue": "Say!"}})
    assert (suite["one"].memory.use, suite["one"].parser.arguments) == ("full", {"cue": "Say!"})


@pytest.mark.parametrize(
    ("tree", "overrides", "words"),
    [
        ({"one": 3}, [], ["one", "3", "group of keys"]),
        ({"one": {"evaluatoin": {}}}, [], ["one", "evaluatoin", "evaluation"]),
        ({"one": {}}, ["evaluation.episodes=0"], ["one", "evaluation.episodes", "0"]),
        (dict.fromkeys(["one", "other"], LADDER), ["one.model.path=x"], ["one model"]),
        (dict.fromkeys(["one", "other"], LADDER), ["one.rollout.history=template"], ["rollout.history"]),
        ({"one": {"evaluation": {"episodes": 3}}}, [], ["one", "does not say what is to be played", "environment.id"]),
    ],
)
def test_a_mistake_in_a_suite_is_one_sentence(tmp_path, tree, overrides, words):
    with pytest.raises(ValueError) as error:
        load_suite(write(tmp_path, tree), overrides)
    assert all(word in str(error.value) for word in words), error.value


def test_an_unknown_suite_is_named():
    with pytest.raises(
        ValueError, match="suite 'balrogg' is neither a file nor a shipped suite; did you mean 'balrog'"
    ):
        load_suite("balrogg")


class Unmade:
    def __init__(self):
        raise RuntimeError("no screen")


def test_what_is_not_installed_is_missing_and_all_other_mistakes_are_mistakes():
    good, absent = play_config("helpers:Ladder"), play_config("no_such_package:World")
    ready, missing = split_missing({"here": good, "away": absent})
    assert list(ready) == ["here"]
    assert list(missing) == ["away"] and "no_such_package" in missing["away"]
    with pytest.raises(ValueError, match="nothing can be played here"):
        split_missing({"away": absent})
    with pytest.raises(ValueError, match="does not take the arguments"):
        split_missing({"here": play_config("helpers:Ladder", environment={"kwargs": {"size": 3}})})
    with pytest.raises(ValueError, match=r"environment .*Unmade \(Unmade\) failed: RuntimeError: no screen"):
        split_missing({"here": play_config(f"{__name__}:Unmade")})
    rows = {"generate": {"use": "arithmetic", "level": 1}, "convert": {"use": "gsm8k"}}
    with pytest.raises(ValueError, match="there in the suite has rows of data"):
        split_missing({"here": good, "there": good.model_copy(update={"data": DataConfig.model_validate(rows)})})


@pytest.mark.parametrize(
    ("name", "episodes"),
    [
        (
            "balrog",
            {"babyai": (5, 10), "babaisai": (40, 3), "crafter": (1, 10), "textworld": (3, 10), "minihack": (6, 5)},
        ),
        ("verlog", {"babyai": (5, 256), "babaisai": (4, 256), "crafter": (1, 32)}),
    ],
)
def test_shipped_suites_hold_what_their_protocols_say(name, episodes):
    suite = load_suite(name)
    _, missing = split_missing(suite)
    assert set(missing) <= {"textworld", "minihack"}  # not everybody has them
    assert {k: (len(c.environment.tasks), c.evaluation.episodes) for k, c in suite.items()} == episodes
    assert {config.evaluation.temperature for config in suite.values()} == {1.0}
    history = {"balrog": {"turns": 16, "thoughts": 1}, "verlog": {"turns": 1}}[name]
    assert all(config.memory.arguments == history for config in suite.values())
    assert suite["crafter"].environment.kwargs["length"] == 2000


def test_results_are_written_as_json_too(whole):
    rows = json.loads(whole["results.json"])["results"]
    assert len(rows) == 3 * (2 * 3 + 1)  # players x (environments x (tasks and all) and overall)
    assert differences(rows[0], {**rows[0]}) == []


def test_some_episodes_of_a_model_can_be_read(tmp_path):
    suite = {name: one.model_copy(update={"log": LogConfig(transcript_every=3)}) for name, one in ladders(7).items()}
    play(suite, tmp_path)
    kept = {name: text for name, text in contents(tmp_path).items() if name.startswith("transcripts/")}
    episodes = map(json.loads, (tmp_path / "episodes.jsonl").read_text().splitlines())
    told = {
        f"transcripts/{one['environment']}-{one['task']}-{one['number']:05}.txt": one
        for one in episodes
        if one["player"] == "moody" and one["number"] % 3 == 0
    }
    assert kept.keys() == told.keys() and len(kept) >= 6
    for name, text in kept.items():
        assert f"{told[name]['turns']} turns" in text
        assert "ACTION: up" in text or "Hm." in text


@pytest.mark.parametrize("name", ["verlog", "balrog"])
def test_what_suites_show_has_room_however_few_words_a_model_knows(name):
    """An observation whose instructions are spelled by the embedded tokenizer; environments that are not here apart."""
    _, tokenizer = open_model(ModelConfig(path="tiny", device="cpu"))
    renderer = Renderer(tokenizer)
    for config in split_missing(load_suite(name))[0].values():
        for task in config.tasks:
            shown = CheckedEnvironment(config.environment, task).reset(0)
            messages = asyncio.run(Window(0).prompt([], 0, shown, None))  # type: ignore[arg-type]
            assert len(renderer.prompt(messages)) < 0.9 * config.rollout.max_prompt_tokens
