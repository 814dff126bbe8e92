"""Every player meets the same levels, and every level is counted once."""

from contextlib import nullcontext
from typing import Any

import pytest
from helpers import Counter, Scripted, make_tokenizer, play_config
from rich.console import Console

from turnwise import checkpoint
from turnwise.config import Config
from turnwise.engines.local import LocalEngine
from turnwise.evaluate import (
    Result,
    eval_seed,
    evaluate_expert,
    evaluate_model,
    evaluate_random,
    open_player,
    results_table,
)
from turnwise.render import Renderer

BABYAI = "turnwise.envs.babyai:BabyAIText"


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(make_tokenizer())


class Seeing(Counter):
    """Notes the seed of each episode, and lets one in three be won by default."""

    seeds: list[int] = []  # noqa: RUF012
    default_action = "win"

    def reset(self, *, seed: int | None = None, options: Any = None):
        assert seed is not None
        Seeing.seeds.append(seed)
        self.easy = seed % 2 == 0
        return super().reset(seed=seed)

    def step(self, action: str):
        return super().step(action if self.easy or action == "add" else "wait")

    def expert(self) -> str:
        return "win"


@pytest.fixture(autouse=True)
def nothing_was_seen() -> None:
    Seeing.seeds = []


def seeing(episodes: int = 7, slots: int = 4, **environment: Any) -> Config:
    environment = {"kwargs": {"limit": 3}, "reward": "native", **environment}
    evaluation = {"episodes": episodes, "slots": slots}
    return play_config(f"{__name__}:Seeing", environment=environment, evaluation=evaluation)


# -- the levels


def test_levels_have_seeds_of_their_own():
    assert len({eval_seed(task, episode) for task in ("goto", "open") for episode in range(200)}) == 400


@pytest.mark.parametrize("slots", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("episodes", [1, 7])
def test_a_model_meets_the_same_levels_whatever_the_number_of_slots(renderer, slots, episodes):
    evaluate_model(seeing(episodes, slots), Scripted(renderer), renderer)
    assert sorted(Seeing.seeds) == sorted(eval_seed("Seeing", episode) for episode in range(episodes))


def test_all_players_meet_the_same_levels(renderer):
    config = seeing(6)
    met = []
    for play in (lambda: evaluate_model(config, Scripted(renderer), renderer), lambda: evaluate_random(config)):
        Seeing.seeds = []
        play()
        met.append(sorted(Seeing.seeds))
    Seeing.seeds = []
    evaluate_expert(config)
    assert met[0] == met[1] == sorted(Seeing.seeds)


def test_neither_the_run_nor_its_seed_changes_the_levels(renderer):
    for seed in (0, 5):
        evaluate_model(seeing().model_copy(update={"seed": seed}), Scripted(renderer), renderer)
    assert sorted(Seeing.seeds[:7]) == sorted(Seeing.seeds[7:])


def test_each_task_has_its_own_levels(renderer):
    config = seeing(3, 5, tasks={"a": {}, "b": {}})
    results = evaluate_model(config, Scripted(renderer), renderer)
    assert [(one.task, one.episodes) for one in results] == [("a", 3), ("b", 3)]
    assert sorted(Seeing.seeds) == sorted(eval_seed(task, episode) for task in "ab" for episode in range(3))


# -- the figures


@pytest.mark.parametrize("slots", [1, 3, 64])
def test_a_result_holds_each_episode_once(renderer, slots):
    """The invalid reply plays the default, which wins the easy ones; the others last 3 turns."""
    easy = sum(eval_seed("Seeing", episode) % 2 == 0 for episode in range(12))
    assert 0 < easy < 12
    (result,) = evaluate_model(seeing(12, slots), Scripted(renderer, ["Whatever."]), renderer)
    hard = 12 - easy
    assert (result.episodes, result.successes) == (12, easy)
    assert result.mean_turns == pytest.approx((easy + 3 * hard) / 12)
    assert result.mean_return == pytest.approx((easy + 3 * hard) * (0.25 - 0.1) / 12)
    assert result.valid == 0
    assert result.invalid_texts == (("", easy + 3 * hard),)
    assert result.failures == 0
    assert result.rate == easy / 12
    assert result.interval is not None
    assert result.interval[0] < easy / 12 < result.interval[1]


def test_valid_actions_are_counted(renderer):
    replies = ["ACTION: add", "ACTION: increase", "ACTION: fly", "ACTION: fly"]
    (result,) = evaluate_model(seeing(8, 1, kwargs={"limit": 4}), Scripted(renderer, replies), renderer)
    assert result.valid is not None
    assert 0.5 <= result.valid < 1
    assert dict(result.invalid_texts).keys() == {"fly"}


class Silent(Counter):
    """Does not tell whether it was solved."""

    def step(self, action: str):
        return *super().step(action)[:4], {}


def test_where_no_verdict_is_given_none_is_made_up(renderer):
    config = play_config(
        f"{__name__}:Silent", environment={"kwargs": {"limit": 2}, "reward": "native"}, evaluation={"episodes": 3}
    )
    for (result,) in (evaluate_model(config, Scripted(renderer), renderer), evaluate_random(config)):
        assert (result.episodes, result.successes, result.rate, result.interval) == (3, None, None, None)
        assert result.mean_return > 0
        assert str(result) == f"return {result.mean_return:.2f}"


def test_evaluation_samples_by_its_own_temperature_and_without_filters(renderer):
    config = play_config(
        environment={"kwargs": {"limit": 1}},
        rollout={"temperature": 0.3, "top_p": 0.5, "top_k": 4},
        evaluation={"episodes": 3, "temperature": 0.0},
    )
    engine = Scripted(renderer)
    evaluate_model(config, engine, renderer)
    assert {(s.temperature, s.top_p, s.top_k, s.max_tokens) for s in engine.samplings} == {(0.0, 1.0, 0, 12)}
    assert config.rollout.temperature == 0.3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_is_judged_the_same_whatever_the_number_of_slots(tiny, temperature):
    """Its replies are sampled by the seed of the level, not by the slot; BabyAI with few steps would take long."""
    model, tokenizer = tiny
    renderer = Renderer(tokenizer)
    engine = LocalEngine(model, renderer.stop_ids, nullcontext())
    results = []
    for slots in (1, 3, 5):
        config = play_config(
            environment={"kwargs": {"limit": 4, "goal": 2}},
            evaluation={"episodes": 5, "slots": slots, "temperature": temperature},
        )
        results += evaluate_model(config, engine, renderer)
    assert results[0] == results[1] == results[2]
    assert (results[0].episodes, results[0].mean_turns, results[0].valid) == (5, 4.0, 0.0)


def test_a_random_model_plays_babyai(tiny):
    model, tokenizer = tiny
    renderer = Renderer(tokenizer)
    engine = LocalEngine(model, renderer.stop_ids, nullcontext())
    config = play_config(
        BABYAI,
        environment={"tasks": {"goto": {"task": "goto"}, "pickup": {"task": "pickup"}}},
        rollout={"max_reply_tokens": 2, "max_prompt_tokens": 1500},
        memory={"turns": 0},
        evaluation={"episodes": 2, "slots": 4},
    )
    results = evaluate_model(config, engine, renderer)
    assert [(one.task, one.episodes) for one in results] == [("goto", 2), ("pickup", 2)]
    for one in results:
        assert one.valid == 0  # two random bytes are no action
        assert one.successes in (0, 1, 2)
        assert 1 <= one.mean_turns <= 64


class Flaky(Seeing):
    """The first environment that is made fails in its first episode."""

    made = 0

    def __init__(self, limit: int = 3):
        super().__init__(limit)
        self.sound = Flaky.made > 0
        Flaky.made += 1

    def step(self, action: str):
        if not self.sound and self.steps == 1:
            raise RuntimeError("the network is down")
        return super().step(action)


def test_an_episode_that_fails_is_replaced_and_counted(renderer):
    Flaky.made = 0
    config = seeing(5, 2)
    config.environment.id = f"{__name__}:Flaky"
    (result,) = evaluate_model(config, Scripted(renderer), renderer)
    assert (result.episodes, result.failures, Flaky.made) == (5, 1, 3)
    assert result.mean_turns == 3


@pytest.mark.parametrize("play", [evaluate_random, evaluate_expert])
def test_the_other_players_outlive_a_failure_too(play):
    Flaky.made = -1  # one more is made first, to see what it has
    config = seeing(5)
    config.environment.id = f"{__name__}:Flaky"
    (result,) = play(config)
    assert (result.episodes, result.failures) == (5, 1)


class Hopeless(Seeing):
    def step(self, action: str):
        raise RuntimeError("the network is down")


def test_an_environment_that_keeps_failing_is_a_mistake_of_one_sentence(renderer):
    config = seeing()
    config.environment.id, config.environment.max_failures = f"{__name__}:Hopeless", 3
    with pytest.raises(ValueError, match="3 times in a row"):
        evaluate_model(config, Scripted(renderer), renderer)


# -- other players


def test_the_random_player_and_the_expert_play_babyai():
    tasks = {"goto": {"task": "goto"}}
    config = play_config(BABYAI, environment={"tasks": tasks}, evaluation={"episodes": 12})
    (luck,) = evaluate_random(config)
    experts = evaluate_expert(config)
    assert experts is not None
    (expert,) = experts
    assert (luck.task, luck.episodes) == (expert.task, expert.episodes) == ("goto", 12)
    assert expert.successes == 12
    assert expert.mean_return == 1.0
    assert luck.successes in range(12)
    assert luck.mean_turns > 2 * expert.mean_turns
    assert luck.valid is expert.valid is None
    assert evaluate_random(config) == [luck]


def test_players_without_text_pay_no_penalty_and_are_paid_as_the_recipe_says():
    for reward, paid in (("native", 0.25), ("binary", 1.0)):
        experts = evaluate_expert(play_config(f"{__name__}:Sage", environment={"reward": reward}))
        assert experts is not None
        assert (experts[0].successes, experts[0].mean_return, experts[0].mean_turns) == (200, paid, 1.0)


def test_without_a_list_of_actions_there_is_no_random_player():
    assert evaluate_random(play_config("helpers:AnyCounter")) is None


class Sage(Counter):
    def expert(self) -> str:
        return "win"


def test_an_environment_without_an_expert_has_none():
    assert evaluate_expert(play_config()) is None


# -- what is shown


def test_the_table_names_tasks_players_and_the_most_frequent_mistakes(renderer):
    model = Result("goto", 3, 4, 0.7, 5.0, 0.875, (("fly", 7), ("sing", 2)))
    console = Console(width=200, record=True)
    table = results_table({"mine": [model], "random": [Result("goto", 0, 4, 0.0, 64.0)]}, play_config())
    console.print(table)
    text = console.export_text()
    for part in ("goto", "mine", "random", "0.750 [0.301, 0.954]", "0.000 [0.000, 0.490]", "goto 0.875", "'fly' x7"):
        assert part in text


# -- opening


def test_a_player_is_opened_as_its_newest_checkpoint_left_it(tiny_folder, tiny, tmp_path):
    config = play_config(model={"path": str(tiny_folder), "device": "cpu", "precision": "fp32"})
    before, _ = open_player(config, None)
    assert isinstance(before, LocalEngine)
    tensors = {f"actor.{name}": tensor + 1 for name, tensor in tiny[0].named_parameters()}
    checkpoint.save(tmp_path / "checkpoints", "000001", {"policy": tensors}, {})
    after, renderer = open_player(config, tmp_path)
    assert isinstance(after, LocalEngine)
    assert renderer.stop_ids == {258}
    for (name, old), new in zip(before.model.named_parameters(), after.model.parameters(), strict=True):
        assert (old + 1).equal(new), name


def test_a_run_without_a_checkpoint_cannot_be_judged(tiny_folder, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    config = play_config(model={"path": str(tiny_folder), "device": "cpu"})
    with pytest.raises(ValueError, match="has no checkpoint yet"):
        open_player(config, tmp_path)
