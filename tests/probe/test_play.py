"""What is played, and that it is measured as it was played."""

import json
from pathlib import Path
from typing import Any

import pytest
from helpers import Counter, Scripted, make_tokenizer, play_config
from rich.console import Console

from turnwise.cli import main
from turnwise.evaluate import play_held_out
from turnwise.memory.window import Window
from turnwise.probe.command import record
from turnwise.probe.measure import lengths, played
from turnwise.probe.play import EPISODES, IN_ALL, MEMORIES, Plan, probe, prompt_lengths
from turnwise.probe.table import summary
from turnwise.render import Renderer

REPLIES = ("THINK: one\nACTION: add", "THINK: two or three\nACTION: wait", "ACTION: ad", "Whatever.")


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(make_tokenizer())


def counting(limit: int = 6, **tree: Any):
    tree = {"evaluation": {"episodes": 3, "slots": 2}, **tree}
    return play_config(environment={"kwargs": {"limit": limit}, **tree.pop("environment", {})}, **tree)


@pytest.mark.parametrize(("tasks", "episodes"), [(1, EPISODES), (2, EPISODES), (5, IN_ALL // 5), (200, 1)])
def test_a_probe_plays_few_episodes_unless_told_otherwise(tasks, episodes):
    config = counting(environment={"tasks": {str(n): {} for n in range(tasks)}}, rollout={"n_env": tasks})
    assert Plan("", config).episodes == episodes * tasks
    assert Plan("", config, whole=True).episodes == 3 * tasks


@pytest.mark.parametrize("turns", [0, 1, 4, 32])
def test_rendered_prompts_are_as_long_as_played_ones(renderer, turns):
    config = counting(memory={"turns": turns, "thoughts": 1})
    slots = play_held_out(config, Scripted(renderer, REPLIES), renderer)
    episodes = [segment for slot in slots for segment in slot.share.segments]
    real = lengths([len(turn.prompt_ids) for one in episodes for turn in played(one)])
    assert prompt_lengths(episodes, Window(turns, thoughts=1), renderer) == real


@pytest.mark.parametrize("memory", [{"use": "note"}, {"use": "full"}, {"turns": 3}])
def test_prompts_of_any_play_can_be_rendered_for_all_memories(renderer, memory):
    made = probe(Plan("", counting(limit=12, memory=memory), whole=True), Scripted(renderer, REPLIES), renderer)
    means = [memory.prompts.mean for memory in made.memories]
    assert [memory.turns for memory in made.memories] == list(MEMORIES)
    assert means == sorted(means) and means[0] < means[3] < means[4] == means[5]
    assert all(memory.shortened is None and memory.sheets == () for memory in made.memories)


def test_a_sweep_plays_each_memory_and_its_own_only_once(renderer):
    plan = Plan("", counting(memory={"turns": 2}), [4, 2, 4], whole=True)
    engine, heard = Scripted(renderer, REPLIES), []
    made = probe(plan, engine, renderer, lambda: heard.append(1))
    assert len(heard) == plan.episodes == 6
    assert len(engine.prompts) == 36
    assert [memory.turns for memory in made.memories] == [2, 4]
    assert made.memories[0].sheets == made.sheets
    assert [one.score.episodes for one in made.memories[1].sheets] == [3, 3]


def test_a_sweep_tells_where_the_limit_took_history(renderer):
    plan = Plan("", counting(rollout={"max_prompt_tokens": 500}), [1, 32], whole=True)
    one, all_of_them = probe(plan, Scripted(renderer, REPLIES), renderer).memories
    assert one.shortened == 0 < (all_of_them.shortened or 0)
    assert all_of_them.prompts.longest > 500


class Failing(Counter):
    """Fails in its last turn, on three of four levels."""

    def reset(self, *, seed: int | None = None, options: Any = None):
        self.level = seed or 0
        return super().reset(seed=seed, options=options)

    def step(self, action: str):
        answer = super().step(action)
        if answer[3] and self.level % 4:
            raise RuntimeError("the game is broken")
        return answer


def test_turns_of_episodes_that_failed_are_turns_too(renderer):
    """They may have lost history as well."""
    config = counting(environment={"id": f"{__name__}:Failing"}, rollout={"max_prompt_tokens": 500}, memory="full")
    whole = probe(Plan("", config, whole=True), Scripted(renderer, ["Whatever."]), renderer)
    assert 0 < whole.shortened < 1


def test_players_meet_as_many_episodes_and_are_pooled(renderer):
    config = counting(environment={"tasks": {"a": {}, "b": {"goal": 1}}})
    made = probe(Plan("mine", config, whole=True), Scripted(renderer), renderer)
    assert [one.score.task for one in made.sheets] == ["all tasks", "a", "b"]
    assert [one.task for one in made.rivals["random"]] == ["all tasks", "a", "b"]
    assert [one.episodes for one in made.rivals["random"]] == [one.score.episodes for one in made.sheets] == [6, 3, 3]
    assert "expert" not in made.rivals
    assert [one.score.successes for one in made.sheets] == [3, 0, 3]


class Won(Counter):
    """Tells of success where it is won, and of nothing else."""

    def step(self, action: str):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated, info if info["success"] else {}

    def expert(self) -> str:
        return "win"


def test_players_are_judged_alike_where_only_wins_are_told(renderer):
    config = counting(environment={"id": f"{__name__}:Won", "reward": "native"})
    made = probe(Plan("mine", config, [1, 2], whole=True), Scripted(renderer, ["ACTION: wait"]), renderer)
    scores = [made.sheets[0].score, made.rivals["expert"][0], *(one.sheets[0].score for one in made.memories)]
    assert [one.successes for one in scores] == [0, 3, 0, 0]
    assert not any("tells of no success" in verdict["finding"] for verdict in record(made)["verdicts"])


def test_the_record_is_json_with_every_figure(renderer):
    made = probe(Plan("mine", counting(), whole=True), Scripted(renderer, REPLIES), renderer)
    read = json.loads(json.dumps(record(made)))
    assert read["sheets"][0]["actions"] == {"valid": 10, "translated": 0, "invalid": 8}
    assert read["config"]["environment"]["id"] == "helpers:Counter"
    assert {verdict["mark"] for verdict in read["verdicts"]} <= {"mend", "look", "good"}


def test_the_terminal_shows_verdicts_and_figures_and_no_control_characters(renderer):
    replies = ("THINK: one\nACTION: \x1b[31mred", "THINK: two\nACTION: add")
    made = probe(Plan("[bold]mine", counting(), [1, 2], whole=True), Scripted(renderer, replies), renderer)
    console = Console(width=100, record=True, color_system=None)
    console.print(summary(made))
    text = console.export_text()
    for part in ("[bold]mine", "Understood actions: 50%", "all tasks", "turns of memory", "out of time", "success"):
        assert part in text
    assert "\x1b" not in text


# -- the command


def run(*words: str | Path) -> int:
    return main(["probe", *map(str, words)])


LAKE = """
environment:
  id: turnwise.envs.frozenlake:FrozenLakeText
  workers: inline
  kwargs: {length: 4}
  tasks: {goto: {}}
rollout: {max_reply_tokens: 12}
"""


def test_the_embedded_model_is_probed_in_one_command(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lake.yaml").write_text(LAKE)
    goto = ["environment.id=levels:Short", "environment.tasks={goto: {}}", "evaluation.episodes=2", "model.device=cpu"]
    assert run("tiny", "babyai-quick", *goto, "--json", "probe.json", "--memory", "1", "4") == 0
    (babyai,) = json.loads(Path("probe.json").read_text())
    assert babyai["sheets"][0]["actions"]["invalid"] == 0
    assert set(babyai["rivals"]) == {"random", "expert"}
    assert Path("probe.html").read_text(encoding="utf-8").count('<section class="probe"') == 1

    assert run("tiny", "lake.yaml", "evaluation.episodes=2", "model.device=cpu", "--html", "lake.html") == 0
    assert not Path("lake.html").read_text(encoding="utf-8").count("babyai")
    assert "mend  Understood actions: 0%" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["tiny"], "is not a run, so a recipe must say what to play"),
        (["tiny", "babyai-quik"], "did you mean 'babyai-quick'?"),
        (["tiny", "babyai-quick", "evaluation.episodes=none"], "evaluation.episodes is 'none'"),
        (["tiny", "babyai-quick", "--html", "nowhere/page.html"], "nowhere/page.html cannot be written"),
        (["tiny", "babyai-quick", "--json", "."], "cannot be written"),
        (["tiny", "babyai-quick", "--memory", "1", "-1"], "memory.turns is -1"),
        (["tiny", "babyai-quick", "environment.tasks={x: {task: fly}}"], "task is 'fly'"),
        (["tiny", "gsm8k-tool-qwen3b"], "a probe plays an environment, but gsm8k-tool-qwen3b has rows of data"),
    ],
)
def test_mistakes_are_one_sentence_before_anything_is_played(words, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(*words) == 2
    error = capsys.readouterr().err
    assert error.startswith("turnwise: ") and error.count("\n") == 1 and sentence in error
    assert not list(tmp_path.iterdir())
