"""What a user meets: commands, and one clear sentence for each mistake."""

import asyncio
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

import turnwise
from turnwise.cli import main
from turnwise.config import ModelConfig
from turnwise.engines.make import local
from turnwise.models import open_model
from turnwise.progress import interruptible
from turnwise.recipe import load_config
from turnwise.suite import load_suite
from turnwise.trackers.tensorboard import TensorBoard
from turnwise.train import Training

RECIPES = Path(turnwise.__file__).parent / "recipes"


class Counting(gymnasium.Env[Any, Any]):
    """Ends with success after three turns, whatever is said."""

    observation_space = gymnasium.spaces.Text(100)
    action_space = gymnasium.spaces.Text(100)
    actions = ("left", "right")

    def __init__(self, broken: bool = False):
        self.broken = broken

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self.turn = 0
        return "turn 0", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self.broken:
            raise RuntimeError("the game is broken")
        self.turn += 1
        return f"turn {self.turn}", 0.0, self.turn == 3, False, {"success": self.turn == 3}


class Idle:
    """Plays nothing."""

    def __init__(self, setting: Any):
        pass


@pytest.fixture
def recipe(tmp_path: Path, tiny_folder: Path) -> Path:
    """A run of seconds."""
    tree = {
        "run": str(tmp_path / "run"),
        "steps": 3,
        "model": {"path": str(tiny_folder), "precision": "fp32", "device": "cpu"},
        "environment": {"id": "test_cli:Counting", "workers": "inline"},
        "rollout": {"n_env": 2, "e_len": 2, "max_reply_tokens": 5, "max_prompt_tokens": 400},
        "update": {"minibatch": 2, "actor_lr": 1e-3, "critic_lr": 1e-3},
        "warmup": {"w_epoch": 2, "w_iter": 2, "tolerance": 0.0},
        "evaluation": {"episodes": 4, "slots": 2},
        "log": {"transcript_every": 2},
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def run(*arguments: str | Path) -> int:
    return main([str(argument) for argument in arguments])


def figures(recipe: Path, name: str) -> list[float]:
    """What metrics.jsonl says of a figure, wherever it has it."""
    lines = [json.loads(line) for line in (recipe.parent / "run" / "metrics.jsonl").read_text().splitlines()]
    return [line[name] for line in lines if name in line]


def test_a_run_leaves_its_configuration_metrics_transcripts_and_model(recipe: Path, capsys: Any) -> None:
    assert run("train", recipe) == 0
    folder = recipe.parent / "run"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["phase"] for line in lines] == ["warmup"] * 4 + ["train"] * 3
    assert [line["step"] for line in lines if line["phase"] == "train"] == [1, 2, 3]
    assert (folder / "model" / "model.safetensors").is_file()
    assert json.loads((folder / "versions.json").read_text())["torch"]
    assert load_config(folder / "config.yaml").steps == 3
    transcript = next((folder / "transcripts").iterdir()).read_text()
    assert "turn 0" in transcript and "terminated: success" in transcript
    assert f"turnwise eval {folder}" in capsys.readouterr().out


@pytest.mark.parametrize("changed", ["tokenizer.json", "chat_template.jinja", "model.safetensors"])
def test_a_run_knows_the_model_that_it_was_made_from(recipe: Path, tmp_path: Path, capsys: Any, changed: str) -> None:
    model = tmp_path / "model"
    shutil.copytree(yaml.safe_load(recipe.read_text())["model"]["path"], model)
    assert run("train", recipe, f"model.path={model}", "steps=1", "warmup.w_epoch=0") == 0
    assert run("eval", tmp_path / "run", "evaluation.episodes=1") == 0
    if changed == "tokenizer.json":  # two tokens change places
        tree = json.loads((model / changed).read_text())
        words = tree["model"]["vocab"]
        words["a"], words["b"] = words["b"], words["a"]
        (model / changed).write_text(json.dumps(tree))
    elif changed == "chat_template.jinja":
        (model / changed).write_text((model / changed).read_text() + "{# other #}")
    else:
        weights = {name: weight + 1 for name, weight in load_file(model / changed).items()}
        save_file(weights, model / changed, metadata={"format": "pt"})
    for command in (["eval", tmp_path / "run"], ["probe", tmp_path / "run"], ["train", tmp_path / "run", "--resume"]):
        assert f"model.path is '{model}', whose weights or tokenizer are not those" in refused(capsys, *command)


def test_a_run_says_which_samples_it_leaves_out(recipe: Path, tmp_path: Path, capsys: Any) -> None:
    rows = [json.dumps({"prompt": f"What is {number}?", "ground_truth": str(number)}) for number in range(6)]
    for name, lines in (("train", rows[:5]), ("test", rows[3:])):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    tree = yaml.safe_load(recipe.read_text())
    tree |= {"data": {split: [str(tmp_path / f"{split}.jsonl")] for split in ("train", "test")}}
    tree |= {"agent": {"use": "single_turn"}, "environment": {}, "reward": {"use": "math_equal"}}
    recipe.write_text(yaml.safe_dump(tree))
    assert run("train", recipe, "steps=1", "warmup.w_epoch=0") == 0
    assert "2 training samples are left out: they are test samples too" in capsys.readouterr().out
    assert run("train", recipe, "steps=1", "warmup.w_epoch=0", "--resume") == 0  # it is over, and goes on all the same


def test_an_evaluation_of_data_tells_its_sources_apart(recipe: Path, tmp_path: Path, capsys: Any) -> None:
    rows = [{"prompt": f"What is {number}?", "data_source": "even" if number % 2 == 0 else ""} for number in range(6)]
    for name, some in (("test", rows), ("train", [{"prompt": "What is there?"}])):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, some)))
    tree = yaml.safe_load(recipe.read_text())
    tree |= {"data": {split: [str(tmp_path / f"{split}.jsonl")] for split in ("train", "test")}}
    tree |= {"agent": {"use": "single_turn"}, "environment": {}, "reward": {"use": f"{__name__}:even"}}
    recipe.write_text(yaml.safe_dump(tree))
    assert run("eval", "tiny", recipe, "evaluation.episodes=6", "--json", tmp_path / "told.json") == 0
    told = json.loads((tmp_path / "told.json").read_text())["results"]
    won = {(row["environment"], row["task"]): (row["successes"], row["episodes"]) for row in told}
    assert won == {("data", "even"): (3, 3), ("data", "data"): (0, 3), ("data", ""): (3, 6)}
    assert "even" in capsys.readouterr().out


def even(data_source: str) -> float:
    return float(data_source == "even")


def test_tensorboard_receives_the_figures_of_each_step(recipe: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert run("train", recipe, "log.trackers=[tensorboard]", "warmup.w_epoch=0") == 0
    events = EventAccumulator(str(recipe.parent / "run" / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("turns/valid")] == [1, 2, 3]


@pytest.mark.parametrize("mode", ["async", "elastic"])
def test_a_run_tells_how_it_plays_held_out_levels_and_stays_the_same_run(mode: str, recipe: Path, capsys: Any) -> None:
    def lines_of(*overrides: str) -> list[dict[str, Any]]:
        folder = recipe.parent / f"run-{len(overrides)}"
        assert run("train", recipe, f"rollout.mode={mode}", "steps=4", f"run={folder}", *overrides) == 0
        lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
        return [{key: value for key, value in line.items() if not key.startswith("time/")} for line in lines]

    told = lines_of("evaluation.every=2")
    held_out = [line for line in told if line["phase"] == "evaluation"]
    assert [line["step"] for line in held_out] == [0, 2, 4]
    assert all(line["held_out/Counting/turns"] == 3 for line in held_out)
    assert "held out, after 4 steps: Counting 1.000 [0.510, 1.000]" in capsys.readouterr().out
    assert [line for line in told if line["phase"] != "evaluation"] == lines_of()


def test_what_no_chat_template_asks_for_is_refused(recipe: Path, capsys: Any) -> None:
    told = "model.chat_template_kwargs={enable_thinking: false}"
    for words in (["train", recipe], ["eval", "tiny", recipe], ["probe", "tiny", recipe]):
        assert "has enable_thinking, for which the chat template of" in refused(capsys, *words, told)
    hosted = refused(capsys, "eval", "http://127.0.0.1:1/v1#some", recipe, told)
    assert "does nothing: http://127.0.0.1:1/v1#some has a template of its own" in hosted


def test_prompts_and_replies_are_no_longer_than_the_model_can_read(recipe: Path, capsys: Any) -> None:
    longer = ["rollout.max_prompt_tokens=4000", "rollout.max_reply_tokens=97"]
    folder = yaml.safe_load(recipe.read_text())["model"]["path"]
    for words in (["train", recipe], ["eval", folder, recipe], ["probe", folder, recipe]):
        told = refused(capsys, *words, *longer)
        assert "rollout.max_prompt_tokens=4000 and rollout.max_reply_tokens=97 are more than the 4096 tokens" in told
    assert run("train", recipe, *longer[:1], "rollout.max_reply_tokens=96", "steps=0", "warmup.w_epoch=0") == 0


class Diary:
    def __init__(self, folder: Path, done: int, name: str):
        self._page = (folder / name).open("a")
        self._page.write(f"from {done}\n")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        if step == 2:
            raise OSError("no ink")
        print(step, "turns/valid" in metrics, file=self._page, flush=True)


def test_a_tracker_may_be_ones_own(recipe: Path, capsys: Any) -> None:
    own = "log.trackers=[{use: 'test_cli:Diary', name: diary.txt}]"
    assert run("train", recipe, own, "warmup.w_epoch=0", "evaluation.every=3") == 0
    lines = (recipe.parent / "run" / "diary.txt").read_text().splitlines()
    assert lines == ["from 0", "0 False", "1 True", "3 True", "3 False"]
    assert "Diary missed step 2: no ink" in capsys.readouterr().out
    misspelt = own.replace("name", "nmae")
    assert "unknown key log.trackers.nmae; did you mean 'name'?" in refused(capsys, "train", recipe, misspelt)


def test_tensorboard_forgets_the_steps_after_the_checkpoint(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for done, told in ((0, (1, 2, 3)), (1, (2, 3, 4))):
        tracker = TensorBoard(tmp_path, done)
        for step in told:
            tracker.log({"figure": step + done / 10}, step)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    found = [(event.step, round(event.value, 1)) for event in events.Scalars("figure")]
    assert found == [(1, 1.0), (2, 2.1), (3, 3.1), (4, 4.1)]


@pytest.mark.parametrize("tolerance", [0.0, 0.01, 1.0])
def test_warm_up_ends_early_only_where_the_loss_falls_by_too_little(recipe: Path, tolerance: float) -> None:
    """Not where it rises, as it does at such a learning rate; no loss can fall by its whole."""

    def losses(tolerance: float) -> list[float]:
        warmup = ["warmup.w_iter=8", f"warmup.tolerance={tolerance}", "update.critic_lr=0.3", "steps=0"]
        assert run("train", recipe, *warmup, f"run={recipe.parent / str(tolerance)}") == 0
        lines = (recipe.parent / str(tolerance) / "metrics.jsonl").read_text().splitlines()
        return [line["critic/loss"] for line in map(json.loads, lines) if "warmup/iteration" in line]

    never = losses(0)
    falls = [before - after for before, after in itertools.pairwise(never)]
    assert len(never) == 8 and min(falls) < 0 < max(falls)
    small = [place for place, fall in enumerate(falls) if 0 <= fall < tolerance * never[place]]
    assert losses(tolerance) == never[: (*small, 6)[0] + 2]


def test_warm_up_may_have_nothing_to_learn(recipe: Path) -> None:
    """Nothing was earned, and values begin at 0."""
    nothing = ["environment.reward=native", "environment.invalid_penalty=0", "kl.reward=0"]
    assert run("train", recipe, *nothing, "warmup.tolerance=0.01", "steps=0") == 0
    assert figures(recipe, "critic/loss") == [0.0, 0.0]


def test_an_adaptive_penalty_counts_the_turns_that_were_played(recipe: Path) -> None:
    """Two slots play two episodes of three turns; the divergence is far below its target, so the most is taken off."""
    adaptive = ["kl.schedule=adaptive", "kl.horizon=100", "kl.target=100", "warmup.w_epoch=0", "steps=2"]
    assert run("train", recipe, *adaptive, "rollout.episodes=2", "rollout.e_len=8") == 0
    first, second = figures(recipe, "kl/coefficient")
    assert second / first == pytest.approx(1 - 0.2 * 12 / 100)


def test_a_task_may_be_named_as_gymnasium_names_environments(recipe: Path) -> None:
    assert run("train", recipe, "environment.tasks={games/Counting-v0: {}}", "warmup.w_epoch=0", "steps=2") == 0
    assert any((recipe.parent / "run" / "transcripts").glob("*-games-Counting-v0.txt"))


stopped: list[Any] = []


def launched(trained: Any) -> Any:
    """An engine that has something to let go of."""
    engine: Any = local(trained)
    engine.close = lambda: stopped.append(engine)
    return engine


def test_an_engine_is_closed_when_the_run_is_over(recipe: Path) -> None:
    stopped.clear()
    assert run("train", recipe, "engine.use=test_cli:launched", "warmup.w_epoch=0", "steps=0") == 0
    assert len(stopped) == 1


def test_eval_shows_the_run_beside_a_random_player(recipe: Path, capsys: Any) -> None:
    run("train", recipe)
    capsys.readouterr()
    assert run("eval", recipe.parent / "run") == 0
    out = capsys.readouterr().out
    assert "Counting" in out and "random" in out and "1.000 [0.510, 1.000]" in out
    record = json.loads((recipe.parent / "run" / "eval.json").read_text())
    assert {row["player"] for row in record["results"]} == {str(recipe.parent / "run"), "random"}


def test_eval_of_a_model_needs_a_recipe(recipe: Path, tiny_folder: Path, capsys: Any) -> None:
    assert run("eval", tiny_folder, recipe, "evaluation.temperature=0") == 0
    assert run("eval", tiny_folder) == 2
    assert "recipe" in capsys.readouterr().err


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """Two environments that can be played, and one that is not installed."""
    here = {"environment": {"id": "test_cli:Counting", "workers": "inline"}, "evaluation": {"episodes": 3}}
    tree = {"one": here, "other": here, "away": {"environment": {"id": "no_such_package:World"}}}
    path = tmp_path / "suite.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def test_a_suite_is_played_kept_and_compared(suite: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    command = ["eval", "random", "--suite", suite, "--out", out, "evaluation.episodes=4", "one.evaluation.episodes=2"]
    assert run(*command) == 0
    printed = capsys.readouterr().out
    assert "away is left out" in printed and "no_such_package" in printed and "away is missing" in printed
    lines = [json.loads(line) for line in (out / "episodes.jsonl").read_text().splitlines()]
    assert [line["environment"] for line in lines] == ["one"] * 2 + ["other"] * 4
    files = {file.name: file.read_text() for file in out.iterdir()}
    assert files.keys() == {"protocol.json", "episodes.jsonl", "results.json", "results.csv", "results.md"}
    assert run(*command) == 0
    assert {file.name: file.read_text() for file in out.iterdir()} == files
    assert "one.evaluation.episodes was 2, now is 3" in refused(capsys, *command, "one.evaluation.episodes=3")
    assert run("compare", out, out) == 0
    assert "+0.000 [-0.410, +0.410]" in capsys.readouterr().out  # six levels that agree do not make two players equal


@pytest.mark.parametrize("override", ["model={precision: fp32}", "model.precision=fp32"])
def test_a_model_plays_whatever_the_blocks_of_a_suite_say(
    override: str, suite: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    tree = yaml.safe_load(suite.read_text())
    for block in tree.values():
        block["model"] = {"path": "tiny-games", "device": "cpu"}
    suite.write_text(yaml.safe_dump(tree))
    command = ["eval", tiny_folder, "--suite", suite, "--out", tmp_path / "out", "evaluation.episodes=1", override]
    assert run(*command, "rollout.max_reply_tokens=4", "rollout.max_prompt_tokens=400") == 0
    played = json.loads((tmp_path / "out" / "protocol.json").read_text())["environments"]
    assert {block["model"]["path"] for block in played.values()} == {str(tiny_folder)}


def test_each_block_of_a_suite_is_held_to_what_the_model_can_read(suite: Path, tiny_folder: Path, capsys: Any) -> None:
    error = refused(capsys, "eval", tiny_folder, "--suite", suite, "other.rollout.max_prompt_tokens=4000")
    assert "rollout.max_prompt_tokens=4000" in error and "4096" in error


@pytest.mark.parametrize("name", ["tiny", "tiny-games", "tiny-tools"])
def test_what_is_embedded_can_read_what_suites_show(name: str) -> None:
    model, _ = open_model(ModelConfig(path=name, device="cpu"))
    shown = [config.rollout for suite in ("verlog", "balrog") for config in load_suite(suite).values()]
    assert max(one.max_prompt_tokens + one.max_reply_tokens for one in shown) <= model.config.max_position_embeddings


def test_a_run_brings_its_model_and_answer_format_to_a_suite(recipe: Path, suite: Path, capsys: Any) -> None:
    assert run("train", recipe, "parser.cue=Speak!", "warmup.w_epoch=0", "steps=1") == 0
    out = recipe.parent / "out"
    small = ["evaluation.episodes=1", "rollout.max_reply_tokens=4", "rollout.max_prompt_tokens=400"]
    assert run("eval", recipe.parent / "run", "--suite", suite, "--out", out, *small) == 0
    protocol = json.loads((out / "protocol.json").read_text())
    assert protocol["weights"].startswith("000001-")
    assert protocol["environments"]["one"]["parser"]["cue"] == "Speak!"
    assert {line["player"] for line in map(json.loads, (out / "episodes.jsonl").open())} == {
        str(recipe.parent / "run"),
        "random",
    }


def test_a_run_without_a_critic_plays_a_suite(recipe: Path, suite: Path) -> None:
    """The blocks say nothing of the estimator, which by default has one."""
    free = ["model.critic=none", "advantage=rloo", "rollout.episodes=1", "rollout.group=2"]
    tree = yaml.safe_load(recipe.read_text())
    del tree["warmup"], tree["update"]["critic_lr"], tree["rollout"]["e_len"]
    recipe.write_text(yaml.safe_dump(tree))
    assert run("train", recipe, *free, "steps=1") == 0
    small = ["evaluation.episodes=1", "rollout.max_reply_tokens=4", "rollout.max_prompt_tokens=400"]
    assert run("eval", recipe.parent / "run", "--suite", suite, *small) == 0


def test_a_run_brings_its_model_to_another_recipe(recipe: Path, tmp_path: Path) -> None:
    """Its weights fit no other."""
    assert run("train", recipe, "warmup.w_epoch=0", "steps=1") == 0
    elsewhere = tmp_path / "elsewhere.yaml"
    tree = yaml.safe_load(recipe.read_text())
    elsewhere.write_text(yaml.safe_dump(tree | {"model": {"path": "/nowhere/model", "lora": {"rank": 4}}}))
    small = ["evaluation.episodes=1", "model.precision=bf16"]
    assert run("eval", tmp_path / "run", elsewhere, *small, "--out", tmp_path / "out") == 0
    (asked,) = json.loads((tmp_path / "out" / "protocol.json").read_text())["environments"].values()
    assert asked["model"] == {**load_config(tmp_path / "run" / "config.yaml").model.model_dump(), "precision": "bf16"}
    assert run("probe", tmp_path / "run", elsewhere, *small, "--html", tmp_path / "page.html") == 0


def test_a_plain_evaluation_is_kept_too(recipe: Path, tiny_folder: Path, capsys: Any) -> None:
    out = recipe.parent / "out"
    assert run("eval", tiny_folder, recipe, "--out", out) == 0
    assert (out / "episodes.jsonl").read_text().count("\n") == 8
    assert "1.000 [0.510, 1.000]" in (out / "results.md").read_text()


def test_a_changed_model_is_another_player(recipe: Path, tiny_folder: Path, tmp_path: Path, capsys: Any) -> None:
    model = shutil.copytree(tiny_folder, tmp_path / "m #2")  # no comment of YAML
    command = ["eval", model, recipe, "--out", recipe.parent / "out"]
    assert run(*command) == 0
    assert run(*command) == 0
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    assert "weights was 'm #2 " in refused(capsys, *command)


def test_what_was_played_is_kept_though_nobody_reads_it(recipe: Path, monkeypatch: Any) -> None:
    def gone(console: Any, *_: Any, **__: Any) -> None:
        if not console.stderr:
            raise BrokenPipeError

    monkeypatch.setattr("rich.console.Console.print", gone)
    monkeypatch.setattr("os.dup2", lambda *_: None)
    assert run("eval", "random", recipe, "--json", recipe.parent / "figures.json") == 1
    assert json.loads((recipe.parent / "figures.json").read_text())["results"]


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["eval", "random", "babyai-quick", "--out", "kept"], "the episodes so far are in kept, and the same command"),
        (["eval", "random", "babyai-quick"], "nothing was kept"),
        (["train", "babyai-quick"], "what the newest checkpoint holds is safe"),
    ],
)
def test_ctrl_c_says_what_is_left(words: list[str], left: str, monkeypatch: Any, capsys: Any) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("turnwise.cli.load_config", interrupt)
    assert run(*words) == 130
    assert left in capsys.readouterr().err


def test_what_is_to_be_played_is_said_once(recipe: Path, suite: Path, capsys: Any) -> None:
    assert "give one" in refused(capsys, "eval", "random", recipe, "--suite", suite)
    assert "offers no such player" in refused(capsys, "eval", "expert", recipe)
    own = "agent.use=test_cli:Counting"  # whatever it does, it does not let others choose
    assert "offers no such player" in refused(capsys, "eval", "random", recipe, own)
    assert "#MODEL" in refused(capsys, "eval", "http://127.0.0.1:1/v1", recipe)
    empty, latin = recipe.parent / "empty.yaml", recipe.parent / "latin.yaml"
    empty.write_text("")
    latin.write_bytes(b"seed: 1  # \xff")
    assert "empty.yaml is empty; give it blocks" in refused(capsys, "eval", "random", "--suite", empty)
    assert "latin.yaml cannot be read as UTF-8 text" in refused(capsys, "train", latin)
    assert "--out is /proc, where nothing can be written" in refused(capsys, "eval", "random", recipe, "--out", "/proc")
    assert "cannot be probed; use turnwise eval" in refused(capsys, "probe", "http://127.0.0.1:1/v1#m", recipe)
    assert "nowhere/x.json cannot be written" in refused(capsys, "eval", "random", recipe, "--json", "nowhere/x.json")
    with pytest.raises(SystemExit):
        run("eval", "random", recipe, "--suite", "")
    assert "an argument is empty" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run("eval", "random", recipe, "--out", recipe.parent / "out", "nonsense")
    assert "unrecognized arguments: nonsense" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["eval", "probe"])
def test_what_only_training_heeds_is_refused_elsewhere(command: str, recipe: Path, capsys: Any) -> None:
    idle = refused(capsys, command, "tiny", recipe, "steps=3")
    assert "steps=3 does nothing where nobody learns; leave it out" in idle
    greedy = refused(capsys, command, "tiny", recipe, "rollout.temperature=0.5")
    assert "rollout.temperature=0.5 does nothing where nobody learns; set evaluation.temperature" in greedy
    kept = refused(capsys, command, "tiny", recipe, "log.transcript_every=1")
    assert "log.transcript_every=1 does nothing where nobody learns; transcripts are kept by turnwise eval" in kept
    for key in ("rollout.mode=lockstep", "rollout.episodes=1", "environment.shares={}", "data.max_samples=3"):
        assert f"{key} does nothing where nobody learns" in refused(capsys, command, "tiny", recipe, key)
    other = refused(capsys, command, "tiny", recipe, "model.path=tiny-games")
    assert "both tiny and model.path=tiny-games say who plays" in other


@pytest.mark.parametrize("override", ["one.rollout.temperature=0.5", "other.seed=3", "one.model.path=tiny-games"])
def test_what_only_training_heeds_is_refused_for_one_block_too(override: str, suite: Path, capsys: Any) -> None:
    error = refused(capsys, "eval", "tiny", "--suite", suite, override)
    assert f"{override} does nothing where nobody learns" in error or "say who plays" in error


def test_the_model_of_a_run_is_not_replaced(recipe: Path, capsys: Any) -> None:
    (recipe.parent / "run").mkdir()
    (recipe.parent / "run" / "config.yaml").write_text(recipe.read_text())
    for command in ("eval", "probe"):
        error = refused(capsys, command, recipe.parent / "run", "model={device: cpu}")
        assert "would replace the model" in error and "model.device=cpu" in error


def test_a_probe_of_an_agent_that_it_does_not_know_is_refused_before_it_plays(recipe: Path, capsys: Any) -> None:
    error = refused(capsys, "probe", "tiny", recipe, "agent.use=test_cli:Idle")
    assert "agent.use=gym alone" in error and "test_cli:Idle" in error


@pytest.mark.parametrize("override", ["model.lora.rank=8", "model.lora=null", "model.lora.alpha=8"])
def test_a_run_is_judged_with_the_adapters_that_it_has(override: str, recipe: Path, capsys: Any) -> None:
    (recipe.parent / "run").mkdir()
    (recipe.parent / "run" / "config.yaml").write_text(recipe.read_text())
    for command in ("eval", "probe"):
        assert f"{override} would be other adapters" in refused(capsys, command, recipe.parent / "run", override)


def test_dry_run_prints_a_configuration_that_can_be_run(recipe: Path, tmp_path: Path, capsys: Any) -> None:
    assert run("train", recipe, "update.epochs=2", "--dry-run") == 0
    again = tmp_path / "again.yaml"
    again.write_text(capsys.readouterr().out)
    assert load_config(again).update.epochs == 2
    assert not (tmp_path / "run").exists()


def test_the_recipe_for_a_3b_model_runs_on_a_small_one_of_its_architecture(tiny_folder: Path, tmp_path: Path) -> None:
    small = ["rollout.n_env=5", "rollout.e_len=2", "rollout.max_reply_tokens=6", "update.minibatch=5", "steps=1"]
    long = ["rollout.max_prompt_tokens=4000", "warmup.w_epoch=1", "warmup.w_iter=1"]  # one token a byte
    assert run("train", "babyai-qwen3b", f"model.path={tiny_folder}", f"run={tmp_path / 'run'}", *small, *long) == 0
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()


@pytest.mark.parametrize("name", sorted(path.stem for path in RECIPES.glob("*.yaml")))
def test_shipped_recipes_pass_a_dry_run(name: str, capsys: Any) -> None:
    assert run("train", name, "--dry-run") == 0


def refused(capsys: Any, *arguments: str | Path) -> str:
    """The one sentence with which a mistake is answered."""
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("turnwise: ") and error.count("\n") == 1 and "Traceback" not in error
    return error


@pytest.mark.parametrize("folder", ["/proc/version/model", "/proc/model"])  # below a file; where even root may not
def test_a_model_is_not_taught_for_a_folder_that_cannot_be(folder: str, capsys: Any) -> None:
    assert f"nothing can be written to {folder}" in refused(capsys, "make-model", folder)


MISTAKES = {
    "an unknown key": (["update.actor_lrr=1"], ["update.actor_lrr", "actor_lr"]),
    "a wrong type": (["update.epochs=many"], ["update.epochs", "many"]),
    "a missing model": (["model.path=/nowhere/model"], ["model.path", "/nowhere/model"]),
    "no turns": (["rollout.e_len=0"], ["rollout.e_len", "0"]),
    "a minibatch larger than the batch": (["update.minibatch=8"], ["update.minibatch", "8", "4"]),
    "an unknown environment": (["environment.id=NoSuchGame-v0"], ["environment.id", "NoSuchGame-v0"]),
    "an environment that fails at once": (
        ["environment.kwargs.broken=true"],
        ["test_cli:Counting", "the game is broken"],
    ),
    "an unknown argument of an environment": (["environment.kwargs.size=3"], ["environment", "size"]),
    "a run where no folder can be": (["run=/proc/version/run"], ["run is", "/proc/version/run"]),
    "an unknown memory": (["memory.use=windw"], ["memory.use", "windw", "window"]),
    "an agent without an episode": (["agent.use=test_cli:Idle"], ["agent.use", "has no method run(session)"]),
    "a text in the place of a list": (["model.lora.targets=q_proj"], ["it must be a list, such as [q_proj]"]),
    "a device that is not there": (["model.device=cuda:7"], ["model.device", "cuda:7"]),
    "a device that holds no numbers": (["model.device=meta"], ["model.device", "meta", "use auto, cpu, or cuda"]),
    "a prompt that cannot fit": (["rollout.max_prompt_tokens=3"], ["rollout.max_prompt_tokens", "3"]),
    "an override without a value": (["update.epochs"], ["update.epochs", "="]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_in_one_sentence(mistake: str, recipe: Path, capsys: Any) -> None:
    overrides, words = MISTAKES[mistake]
    error = refused(capsys, "train", recipe, *overrides)
    assert all(word in error for word in words), error


def test_a_missing_recipe_is_named(capsys: Any) -> None:
    assert "babyai-quik" in refused(capsys, "train", "babyai-quik")


def test_a_model_without_a_chat_template_is_refused(
    recipe: Path, tiny_folder: Path, tmp_path: Path, capsys: Any
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for file in tiny_folder.iterdir():
        if file.name != "chat_template.jinja":
            (bare / file.name).write_bytes(file.read_bytes())
    settings = json.loads((bare / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (bare / "tokenizer_config.json").write_text(json.dumps(settings))
    assert "chat template" in refused(capsys, "train", recipe, f"model.path={bare}")


def test_a_damaged_checkpoint_is_named(recipe: Path, capsys: Any) -> None:
    run("train", recipe)
    newest = max((recipe.parent / "run" / "checkpoints").iterdir())
    weights = newest / "policy.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    capsys.readouterr()
    error = refused(capsys, "train", recipe, "--resume")
    assert str(newest) in error and "policy.safetensors" in error


def test_where_a_checkpoint_is_refused_no_engine_is_made_and_no_process_is_left(
    recipe: Path, capsys: Any, monkeypatch: Any
) -> None:
    processes = ["environment.workers=process", "environment.processes=1", "warmup.w_epoch=0", "steps=1"]
    assert run("train", recipe, *processes) == 0
    (newest,) = (recipe.parent / "run" / "checkpoints").iterdir()
    (newest / "policy.safetensors").unlink()
    capsys.readouterr()
    before = multiprocessing.active_children()
    monkeypatch.setattr("turnwise.train.make_engine", lambda *_: pytest.fail("servers would be started"))
    assert str(newest) in refused(capsys, "train", recipe, *processes, "--resume")
    assert multiprocessing.active_children() == before


def test_a_run_of_another_configuration_is_not_resumed(recipe: Path, capsys: Any) -> None:
    run("train", recipe)
    capsys.readouterr()
    error = refused(capsys, "train", recipe, "update.epochs=2", "--resume")
    assert "update.epochs" in error and "run=" in error


def test_what_changes_speed_and_memory_alone_may_change_in_a_run(recipe: Path, capsys: Any) -> None:
    other = ["update.micro_tokens=500", "update.gradient_checkpointing=true"]
    assert run("train", recipe, "warmup.w_epoch=0") == 0
    assert run("train", recipe, "warmup.w_epoch=0", "--resume", *other) == 0
    kept = load_config(recipe.parent / "run" / "config.yaml").update
    assert (kept.micro_tokens, kept.gradient_checkpointing) == (500, True)


def test_what_messages_advise_may_change_in_a_run_and_is_written_down(recipe: Path, capsys: Any) -> None:
    assert run("train", recipe, "warmup.w_epoch=0", "steps=2") == 0
    advised = ["update.actor_lr=5e-4", "rollout.max_prompt_tokens=410", "environment.max_failures=20", "steps=3"]
    assert run("train", recipe, "warmup.w_epoch=0", "--resume", *advised) == 0
    folder = recipe.parent / "run"
    assert load_config(folder / "config.yaml").update.actor_lr == 5e-4
    changes = (folder / "changes.txt").read_text().splitlines()
    assert len(changes) == 4 and all(line.startswith("from 000002-0000-0000 on: ") for line in changes)
    assert "from 000002-0000-0000 on: update.actor_lr was 0.001, now is 0.0005" in changes
    assert "goes on with changes: " in capsys.readouterr().out
    assert figures(recipe, "step") == [1, 2, 3]
    assert run("train", recipe, "warmup.w_epoch=0", "--resume", *advised) == 0
    assert len((folder / "changes.txt").read_text().splitlines()) == 4


def test_another_machine_and_other_packages_are_written_down_too(recipe: Path, capsys: Any) -> None:
    assert run("train", recipe, "warmup.w_epoch=0", "steps=1") == 0
    file = recipe.parent / "run" / "versions.json"
    made_with = json.loads(file.read_bytes())
    assert (made_with["precision"], made_with["threads"]) == ("fp32", torch.get_num_threads())
    file.write_text(json.dumps({**made_with, "torch": "2.0.0", "precision": "bf16"}))
    assert run("train", recipe, "warmup.w_epoch=0", "steps=2", "--resume") == 0
    assert json.loads(file.read_bytes()) == made_with
    changes = (file.parent / "changes.txt").read_text()
    assert f"on: made with.torch was '2.0.0', now is '{made_with['torch']}'" in changes
    assert "made with.precision was 'bf16', now is 'fp32'" in changes
    assert "made with.precision was 'bf16', now is 'fp32'" in " ".join(capsys.readouterr().out.split())


def test_what_a_run_leaves_in_transcripts_may_change_in_it(recipe: Path) -> None:
    assert run("train", recipe, "warmup.w_epoch=0", "steps=1") == 0
    assert run("train", recipe, "warmup.w_epoch=0", "steps=2", "--resume", "log.transcript_every=1") == 0
    assert "log.transcript_every was 2, now is 1" in (recipe.parent / "run" / "changes.txt").read_text()


def test_a_run_that_may_only_be_read_is_evaluated_all_the_same(recipe: Path, capsys: Any, monkeypatch: Any) -> None:
    assert run("train", recipe, "warmup.w_epoch=0", "steps=1") == 0
    folder = recipe.parent / "run"
    writable = turnwise.run.is_writable
    monkeypatch.setattr("turnwise.run.is_writable", lambda path: path != folder and writable(path))
    capsys.readouterr()
    assert run("eval", folder, "evaluation.episodes=2", "--json", recipe.parent / "mine.json") == 0
    assert "may only be read" in " ".join(capsys.readouterr().out.split())
    assert (recipe.parent / "mine.json").exists() and not (folder / "eval.json").exists()


def test_a_run_inside_an_event_loop_says_where_else_to_begin_it(recipe: Path) -> None:
    async def cell() -> None:
        turnwise.train.train(load_config(recipe))

    with pytest.raises(ValueError, match=r"await asyncio\.to_thread\(train, config\)"):
        asyncio.run(cell())
    assert not (recipe.parent / "run").exists()


def test_an_evaluation_that_fills_a_gpu_does_not_end_the_training(recipe: Path, capsys: Any, monkeypatch: Any) -> None:
    played = turnwise.train.evaluate

    def evaluate(*given: Any, **more: Any) -> Any:
        if (recipe.parent / "run" / "metrics.jsonl").exists():
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB. And more.")
        return played(*given, **more)

    monkeypatch.setattr("turnwise.train.evaluate", evaluate)
    assert run("train", recipe, "warmup.w_epoch=0", "evaluation.every=1") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "not played, since the GPU is full (CUDA out of memory); lower evaluation.slots" in said


def test_a_run_whose_schedule_knows_its_length_is_not_made_longer(recipe: Path, capsys: Any) -> None:
    linear = ["train", recipe, "warmup.w_epoch=0", "update.lr_schedule=linear"]
    assert run(*linear, "steps=1") == 0
    assert "steps was 1, now is 2" in refused(capsys, *linear, "steps=2", "--resume")


class Moody(Counting):
    """Some of its levels break, but not in training."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self.broken = type(self).breaks
        return super().reset(seed=seed)

    breaks = False


def test_an_evaluation_that_cannot_be_played_does_not_end_the_training(
    recipe: Path, capsys: Any, monkeypatch: Any
) -> None:
    played = turnwise.train.evaluate

    def evaluate(*given: Any, **more: Any) -> Any:
        Moody.breaks = (recipe.parent / "run" / "metrics.jsonl").exists()
        try:
            return played(*given, **more)
        finally:
            Moody.breaks = False

    monkeypatch.setattr("turnwise.train.evaluate", evaluate)
    keys = ["environment.id=test_cli:Moody", "warmup.w_epoch=0", "evaluation.every=1", "environment.max_failures=2"]
    assert run("train", recipe, *keys) == 0
    assert figures(recipe, "held_out/Moody/episodes") == [4]
    assert capsys.readouterr().out.count("steps: not played, since environment test_cli:Moody") == 3


def test_only_a_model_that_is_the_newest_is_offered_for_another_run(recipe: Path, capsys: Any) -> None:
    assert run("train", recipe, "warmup.w_epoch=0") == 0
    folder = recipe.parent / "run"
    change = ["train", recipe, "warmup.w_epoch=0", "seed=7", "--resume"]
    assert f"model.path={folder / 'model'}" in refused(capsys, *change)
    os.utime(folder / "model" / "config.json", (1, 1))
    assert "model.path" not in refused(capsys, *change)
    shutil.rmtree(folder / "model")
    assert refused(capsys, *change).rstrip().endswith("or begin another run: run=FOLDER")


def test_a_model_that_was_not_written_to_its_end_is_not_there(recipe: Path, monkeypatch: Any) -> None:
    assert run("train", recipe, "warmup.w_epoch=0", "steps=2") == 0
    model = recipe.parent / "run" / "model"
    before = {file.name: file.read_bytes() for file in model.iterdir()}

    def break_off(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("transformers.PreTrainedTokenizerBase.save_pretrained", break_off)
    assert run("train", recipe, "warmup.w_epoch=0", "steps=2", "--resume") == 130
    assert {file.name: file.read_bytes() for file in model.iterdir()} == before


def test_the_last_checkpoint_is_written_once(recipe: Path, monkeypatch: Any) -> None:
    written = []
    save = turnwise.checkpoint.save
    monkeypatch.setattr("turnwise.checkpoint.save", lambda *given: written.append(given[1]) or save(*given))
    assert run("train", recipe, "warmup.w_epoch=0") == 0
    assert run("train", recipe, "warmup.w_epoch=0", "--resume") == 0
    assert written == ["000001-0000-0000", "000002-0000-0000", "000003-0000-0000"]


def test_a_run_that_finds_nothing_to_compare_any_more_keeps_what_it_learned(recipe: Path, capsys: Any) -> None:
    groups = [
        "rollout={n_env: 2, episodes: 1, group: 2, filter_groups: true, max_reply_tokens: 5}",
        "advantage=grpo",
        "kl.reward=0",
    ]
    tree = yaml.safe_load(recipe.read_text())
    del tree["update"]["critic_lr"], tree["warmup"]
    recipe.write_text(yaml.safe_dump(tree))
    alike = ["model.critic=none", "environment.invalid_penalty=0", "checkpoint.every=10", "update.minibatch=1"]
    assert "no group had episodes of different returns" in refused(capsys, "train", recipe, *groups, *alike)
    folder = recipe.parent / "run"
    assert (folder / "model" / "model.safetensors").is_file() and len(list((folder / "checkpoints").iterdir())) == 1


def test_slots_keep_their_tasks_when_a_run_goes_on(recipe: Path, capsys: Any) -> None:
    tasks = {"one": {}, "other": {}}
    tree = yaml.safe_load(recipe.read_text())
    for names in (tasks, dict(reversed(tasks.items()))):
        tree["environment"]["tasks"] = names
        recipe.write_text(yaml.safe_dump(tree, sort_keys=False))
        if names is tasks:
            assert run("train", recipe, "warmup.w_epoch=0", "steps=1") == 0
    assert "another order" in refused(capsys, "train", recipe, "warmup.w_epoch=0", "steps=1", "--resume")


def test_a_configuration_that_was_broken_by_hand_is_named(recipe: Path, capsys: Any) -> None:
    assert run("train", recipe, "warmup.w_epoch=0", "steps=1") == 0
    (recipe.parent / "run" / "config.yaml").write_text("seed: [")
    error = refused(capsys, "train", recipe, "warmup.w_epoch=0", "steps=1", "--resume")
    assert "config.yaml is not YAML" in error


def test_a_full_gpu_is_one_sentence(recipe: Path, monkeypatch: Any, capsys: Any) -> None:
    def fill(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has more to say")

    monkeypatch.setattr(Training, "step", fill)
    error = refused(capsys, "train", recipe, "warmup.w_epoch=0")
    assert "the GPU is full (CUDA out of memory); lower update.micro_tokens" in error


def test_a_run_goes_on_where_its_folder_is_by_now(recipe: Path, tmp_path: Path, capsys: Any) -> None:
    run("train", recipe)
    (tmp_path / "run").rename(tmp_path / "moved")
    assert run("train", tmp_path / "moved", "--resume") == 0
    assert f"turnwise eval {tmp_path / 'moved'}" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


def test_the_folder_of_a_run_is_no_model_but_has_one(recipe: Path, tmp_path: Path, capsys: Any) -> None:
    run("train", recipe)
    error = refused(capsys, "train", recipe, f"run={tmp_path / 'next'}", f"model.path={tmp_path / 'run'}")
    assert f"the folder of a run; did you mean '{tmp_path / 'run' / 'model'}'?" in error


def test_a_full_disk_is_one_sentence(recipe: Path, monkeypatch: Any, capsys: Any) -> None:
    def full(*_: Any) -> None:
        raise SafetensorError("No space left on device (os error 28)")

    monkeypatch.setattr("turnwise.checkpoint.save_file", full)
    assert "cannot be written: No space left on device" in refused(capsys, "train", recipe)


def test_a_run_is_not_overwritten(recipe: Path, capsys: Any) -> None:
    run("train", recipe)
    capsys.readouterr()
    assert "--resume" in refused(capsys, "train", recipe)


def test_nothing_to_resume_is_said(recipe: Path, capsys: Any) -> None:
    assert "no run to resume" in refused(capsys, "train", recipe, "--resume")


# Forked from a process that has imported what a training needs: that takes longer than these trainings.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["turnwise.train", "transformers.models.qwen2.modeling_qwen2"])


def start(out: Path, *arguments: str | Path) -> BaseProcess:
    """The command in a process of its own; `out` receives what it prints."""
    process = FORKS.Process(target=_run_into, args=(out, [str(argument) for argument in arguments]))
    process.start()
    return process


def _run_into(out: Path, arguments: list[str]) -> None:
    with out.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.exit(main(arguments))


def test_a_fork_of_a_run_ends_when_it_is_told_to() -> None:
    """As the child processes of somebody's scorer."""
    with interruptible() as stop:
        child = FORKS.Process(target=time.sleep, args=(600,))
        child.start()
        child.terminate()
        child.join(20)
        assert child.exitcode == -signal.SIGTERM and not stop.is_set()


def wait_for_lines(metrics: Path, count: int) -> None:
    for _ in range(1200):
        if metrics.exists() and len(metrics.read_text().splitlines()) >= count:
            return
        time.sleep(0.05)
    raise AssertionError(f"{metrics} never had {count} lines")


@pytest.mark.parametrize("ask", [signal.SIGINT, signal.SIGTERM])
def test_one_process_trains_in_a_folder_and_who_stops_it_hears_how_to_resume(
    recipe: Path, capsys: Any, ask: signal.Signals
) -> None:
    process = start(out := recipe.parent / "out", "train", recipe, "steps=100000")
    wait_for_lines(recipe.parent / "run" / "metrics.jsonl", 6)
    twice = refused(capsys, "train", recipe, "steps=100000", "--resume")
    assert f"another process is training in {recipe.parent / 'run'}; wait for it" in twice
    assert process.pid
    os.kill(process.pid, ask)
    process.join(60)
    assert process.exitcode == 130
    assert f"turnwise train {recipe.parent / 'run'} --resume" in out.read_text()
    assert list((recipe.parent / "run" / "checkpoints").iterdir())
