"""Every player meets the same levels, and every level is counted once."""

import gc
import time
import weakref
from contextlib import nullcontext
from typing import Any

import pytest
from helpers import Counter, Scripted, make_tokenizer, play_config
from rich.console import Console

from turnwise import checkpoint
from turnwise.config import Config
from turnwise.data import load_data
from turnwise.engines.local import LocalEngine
from turnwise.evaluate import eval_seed, evaluate, play_held_out
from turnwise.intervals import rate
from turnwise.models import identity
from turnwise.players import Model, expert_player, fingerprint, newest_of, open_player, random_player
from turnwise.recipe import parse_config
from turnwise.render import Renderer
from turnwise.results import Result, Row, by_task, rows_of, summarise, task_table

BABYAI = "turnwise.envs.babyai:BabyAIText"


def results(config: Config, player: Any) -> list[tuple[str, Result]]:
    return [(task, summarise(records)) for task, records in by_task(evaluate(config, player)).items()]


def result(config: Config, player: Any) -> Result:
    ((_, only),) = results(config, player)
    return only


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
    evaluate(seeing(episodes, slots), Model(Scripted(renderer), renderer))
    assert sorted(Seeing.seeds) == sorted(eval_seed("Seeing", episode) for episode in range(episodes))


class Crowded(Scripted):
    """Knows how many wait for it at once, at most."""

    waiting = most = 0

    async def generate(self, prompt_ids: Any, sampling: Any, request_id: str = ""):
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        said = await super().generate(prompt_ids, sampling, request_id)
        self.waiting -= 1
        return said


@pytest.mark.parametrize(("slots", "most"), [(1, 1), (2, 2), (3, 2), (6, 6), (64, 12)])
def test_no_more_episodes_than_slots_are_played_at_once(renderer, slots, most):
    engine = Crowded(renderer)
    records = evaluate(seeing(6, slots, tasks={"a": {}, "b": {}}), Model(engine, renderer))
    assert len(records) == 12
    assert engine.most == most


def test_all_players_meet_the_same_levels(renderer):
    config = seeing(6)
    met = []
    for player in (Model(Scripted(renderer), renderer), random_player(config), expert_player(config)):
        assert player is not None
        Seeing.seeds = []
        evaluate(config, player)
        met.append(sorted(Seeing.seeds))
    assert met[0] == met[1] == met[2] == sorted(eval_seed("Seeing", episode) for episode in range(6))


def test_neither_the_run_nor_its_seed_changes_the_levels(renderer):
    for seed in (0, 5):
        evaluate(seeing().model_copy(update={"seed": seed}), Model(Scripted(renderer), renderer))
    assert sorted(Seeing.seeds[:7]) == sorted(Seeing.seeds[7:])


def test_each_task_has_its_own_levels(renderer):
    config = seeing(3, 5, tasks={"a": {}, "b": {}})
    found = results(config, Model(Scripted(renderer), renderer))
    assert [(task, one.episodes) for task, one in found] == [("a", 3), ("b", 3)]
    assert sorted(Seeing.seeds) == sorted(eval_seed(task, episode) for task in "ab" for episode in range(3))


# -- the figures


@pytest.mark.parametrize("slots", [1, 3, 64])
def test_a_result_holds_each_episode_once(renderer, slots):
    """The invalid reply plays the default, which wins the easy ones; the others last 3 turns."""
    easy = sum(eval_seed("Seeing", episode) % 2 == 0 for episode in range(12))
    assert 0 < easy < 12
    one = result(seeing(12, slots), Model(Scripted(renderer, ["Whatever."]), renderer))
    hard = 12 - easy
    assert (one.episodes, one.successes) == (12, easy)
    assert one.mean_turns == pytest.approx((easy + 3 * hard) / 12)
    assert one.mean_return == pytest.approx((easy + 3 * hard) * (0.25 - 0.1) / 12)
    assert one.valid == 0
    assert one.invalid_texts == (("", easy + 3 * hard),)
    assert one.failures == 0
    assert one.progression == rate(easy, 12)


def test_valid_actions_are_counted(renderer):
    replies = ["ACTION: add", "ACTION: increase", "ACTION: fly", "ACTION: fly"]
    one = result(seeing(8, 1, kwargs={"limit": 4}), Model(Scripted(renderer, replies), renderer))
    assert one.valid is not None
    assert 0.5 <= one.valid < 1
    assert dict(one.invalid_texts).keys() == {"fly"}


class Silent(Counter):
    """Does not tell whether it was solved."""

    def step(self, action: str):
        return *super().step(action)[:4], {}


def test_where_no_verdict_is_given_none_is_made_up(renderer):
    config = play_config(
        f"{__name__}:Silent", environment={"kwargs": {"limit": 2}, "reward": "native"}, evaluation={"episodes": 3}
    )
    for player in (Model(Scripted(renderer), renderer), random_player(config)):
        one = result(config, player)
        assert (one.episodes, one.successes, one.progression) == (3, None, None)
        assert one.mean_return is not None and one.mean_return > 0
        assert str(one) == f"return {one.mean_return:.2f}"


def test_evaluation_samples_by_its_own_temperature_and_without_filters(renderer):
    config = play_config(
        environment={"kwargs": {"limit": 1}},
        rollout={"temperature": 0.3, "top_p": 0.5, "top_k": 4},
        evaluation={"episodes": 3, "temperature": 0.0},
    )
    engine = Scripted(renderer)
    evaluate(config, Model(engine, renderer))
    assert {(s.temperature, s.top_p, s.top_k, s.max_tokens) for s in engine.samplings} == {(0.0, 1.0, 0, 12)}
    assert config.rollout.temperature == 0.3


def test_the_limit_of_training_episodes_does_not_hold_for_judged_ones(renderer):
    config = play_config(
        environment={"kwargs": {"limit": 4}}, rollout={"max_episode_turns": 2}, evaluation={"episodes": 3}
    )
    assert [record.turns for record in evaluate(config, Model(Scripted(renderer), renderer))] == [4, 4, 4]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_is_judged_the_same_whatever_the_number_of_slots(tiny, temperature):
    """Its replies are sampled by the seed of the level, not by the slot; BabyAI with few steps would take long."""
    model, tokenizer = tiny
    renderer = Renderer(tokenizer)
    engine = LocalEngine(model, renderer.stop_ids, nullcontext())
    found = []
    for slots in (1, 3, 5):
        config = play_config(
            environment={"kwargs": {"limit": 4, "goal": 2}},
            evaluation={"episodes": 5, "slots": slots, "temperature": temperature},
        )
        found.append(evaluate(config, Model(engine, renderer)))
    assert found[0] == found[1] == found[2]
    assert [(one.turns, one.valid) for one in found[0]] == [(4, 0)] * 5


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
    found = results(config, Model(engine, renderer))
    assert [(task, one.episodes) for task, one in found] == [("goto", 2), ("pickup", 2)]
    for _, one in found:
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
    one = result(config, Model(Scripted(renderer), renderer))
    assert (one.episodes, one.failures, Flaky.made) == (5, 1, 3)
    assert one.mean_turns == 3


@pytest.mark.parametrize("offer", [random_player, expert_player])
def test_the_other_players_outlive_a_failure_too(offer):
    Flaky.made = -1  # one more is made first, to see what it has
    config = seeing(5, 1)
    config.environment.id = f"{__name__}:Flaky"
    one = result(config, offer(config))
    assert (one.episodes, one.failures) == (5, 1)


class Stuck(Flaky):
    """The first one made hangs at its second step."""

    def step(self, action: str):
        if not self.sound and self.steps == 1:
            time.sleep(5)
        return super().step(action)


@pytest.mark.parametrize("offer", [random_player, expert_player])
def test_the_other_players_outlive_an_environment_that_hangs(offer):
    Flaky.made = -1
    config = seeing(5, 1, workers="thread", timeout_s=0.5)
    config.environment.id = f"{__name__}:Stuck"
    one = result(config, offer(config))
    assert (one.episodes, one.failures) == (5, 1)


class Hopeless(Seeing):
    def step(self, action: str):
        raise RuntimeError("the network is down")


def test_an_environment_that_keeps_failing_is_a_mistake_of_one_sentence(renderer):
    config = seeing()
    config.environment.id, config.environment.max_failures = f"{__name__}:Hopeless", 3
    with pytest.raises(ValueError, match="3 times in a row"):
        evaluate(config, Model(Scripted(renderer), renderer))


# -- other players


def test_the_random_player_and_the_expert_play_babyai():
    tasks = {"goto": {"task": "goto"}}
    config = play_config(BABYAI, environment={"tasks": tasks}, evaluation={"episodes": 12})
    chance, expert = result(config, random_player(config)), result(config, expert_player(config))
    assert chance.episodes == expert.episodes == 12
    assert expert.successes == 12
    assert expert.mean_return == 1.0
    assert chance.successes in range(12)
    assert chance.mean_turns > 2 * expert.mean_turns
    assert chance.valid is expert.valid is None
    assert result(config, random_player(config)) == chance


def test_players_without_text_pay_no_penalty_and_are_paid_as_the_recipe_says():
    for reward, paid in (("native", 0.25), ("binary", 1.0)):
        config = play_config(f"{__name__}:Sage", environment={"reward": reward})
        one = result(config, expert_player(config))
        assert (one.successes, one.mean_return, one.mean_turns) == (200, paid, 1.0)


def test_players_without_text_have_no_limit_of_prompts():
    config = play_config(f"{__name__}:Sage", rollout={"max_prompt_tokens": 1}, evaluation={"episodes": 2})
    for offer in (random_player, expert_player):
        assert result(config, offer(config)).episodes == 2


def test_without_a_list_of_actions_there_is_no_random_player():
    assert random_player(play_config("helpers:AnyCounter")) is None


class Sage(Counter):
    def expert(self) -> str:
        return "win"


class Advised(Counter):
    """Its expert says what no one can play."""

    def __init__(self, advice: Any):
        super().__init__()
        self.advice = advice

    def expert(self) -> Any:
        return self.advice


@pytest.mark.parametrize("advice", [None, 1, "fly"])
def test_an_expert_that_answers_nonsense_is_one_sentence(advice):
    kwargs = {"kwargs": {"advice": advice}, "max_failures": 2}
    config = play_config(f"{__name__}:Advised", environment=kwargs, evaluation={"episodes": 1})
    with pytest.raises(ValueError, match=f"its expert would play {advice!r}, which is no legal action"):
        results(config, expert_player(config))


def test_an_environment_without_an_expert_has_none():
    assert expert_player(play_config()) is None


# -- what is shown


def test_the_table_names_tasks_players_and_the_most_frequent_mistakes(renderer):
    model = Result(4, 3, rate(3, 4), 0.7, 5.0, 0.875, (("fly", 7), ("sing", 2)))
    chance = Result(4, 0, rate(0, 4), 0.0, 64.0)
    console = Console(width=200, record=True)
    table = task_table(
        [Row("mine", "BabyAIText", "goto", model), Row("random", "BabyAIText", "goto", chance)], play_config()
    )
    console.print(table)
    text = console.export_text()
    for part in ("goto", "mine", "random", "0.750 [0.301, 0.954]", "0.000 [0.000, 0.490]", "goto 0.875", "'fly' x7"):
        assert part in text


# -- turn by turn


def test_a_model_can_be_watched_turn_by_turn(renderer):
    heard = []
    slots = play_held_out(seeing(5, 2), Scripted(renderer), renderer, lambda: heard.append(1))
    assert len(heard) == 5
    assert sorted(segment.seed for slot in slots for segment in slot.share.segments) == sorted(Seeing.seeds)
    records = evaluate(seeing(5, 2), Model(Scripted(renderer), renderer))
    assert {(record.seed, record.turns) for record in records} == {
        (segment.seed, len(segment.turns)) for slot in slots for segment in slot.share.segments
    }


@pytest.mark.parametrize("slots", [1, 3, 7])
@pytest.mark.parametrize("known", [0, 1, 4, 7])
def test_known_episodes_are_not_played_again(renderer, slots, known):
    player = Model(Scripted(renderer), renderer)
    every = evaluate(seeing(7, slots), player)
    Seeing.seeds = []
    assert evaluate(seeing(7, slots), player, known=every[:known]) == every
    assert sorted(Seeing.seeds) == sorted(record.seed for record in every[known:])


# -- opening


def test_a_player_is_opened_as_its_newest_checkpoint_left_it(tiny_folder, tiny, tmp_path):
    config = play_config(model={"path": str(tiny_folder), "device": "cpu", "precision": "fp32"})
    before, _ = open_player(config, None)
    assert isinstance(before, LocalEngine)
    tensors = {f"actor.{name}": tensor + 1 for name, tensor in tiny[0].named_parameters()}
    checkpoint.save(tmp_path / "checkpoints", "000001", {"policy": tensors}, {"model": identity(*tiny)})
    newest = newest_of(tmp_path)
    after, renderer = open_player(config, newest)
    assert isinstance(after, LocalEngine)
    assert renderer.stop_ids == {258}
    assert fingerprint(newest).startswith("000001 ")
    for (name, old), new in zip(before.model.named_parameters(), after.model.parameters(), strict=True):
        assert (old + 1).equal(new), name


def test_a_run_without_a_checkpoint_cannot_be_judged(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ValueError, match="has no checkpoint yet"):
        newest_of(tmp_path)


@pytest.mark.parametrize("slots", [1, 3, 7])
@pytest.mark.parametrize("lost", [0, 3, 6])
def test_a_lost_episode_is_played_again_and_no_other_level_in_its_place(renderer, slots, lost):
    player = Model(Scripted(renderer), renderer)
    every = evaluate(seeing(7, slots), player)
    assert evaluate(seeing(7, slots), player, known=every[:lost] + every[lost + 1 :]) == every


def test_levels_that_were_passed_over_are_not_tried_again(renderer):
    config = play_config(
        "helpers:Ladder",
        environment={"kwargs": {"fragile": True}, "reward": "native"},
        evaluation={"episodes": 12, "slots": 2},
    )
    player = Model(Scripted(renderer), renderer)
    every = evaluate(config, player)
    assert sum(one.failures for one in every) > 0
    for lost in range(12):
        assert evaluate(config, player, known=every[:lost] + every[lost + 1 :]) == every


# -- rows of data


class Asked:
    """Eight rows to test on."""

    def rows(self, split: str) -> list[dict[str, Any]]:
        return [{"prompt": f"{split} {n}?", "ground_truth": str(n)} for n in range(8)]


def some_fail(ground_truth: str, fails: Any = ()) -> float:
    if int(ground_truth) in fails:
        raise RuntimeError("this one cannot be scored")
    return 1.0


def asked(fails: list[int], episodes: int, slots: int) -> Config:
    return parse_config(
        {
            "agent": {"use": "single_turn"},
            "data": {"generate": {"use": f"{__name__}:Asked"}},
            "reward": {"use": f"{__name__}:some_fail", "fails": fails},
            "evaluation": {"episodes": episodes, "slots": slots},
            "rollout": {"episodes": 1, "max_prompt_tokens": 4000},
        }
    )


@pytest.mark.parametrize("slots", [1, 3, 8, 64])
@pytest.mark.parametrize("fails", [[], [2], [1, 5, 6], [0, 1, 2, 3, 4, 5, 6]])
def test_no_test_row_is_played_twice_for_one_that_fails(renderer, fails, slots):
    config = asked(fails, 8, slots)
    model = Model(Scripted(renderer), renderer)
    records = evaluate(config, model)
    assert config.data is not None
    tested = [int(sample.ground_truth) for sample in load_data(config.data).test]
    assert [one.number for one in records] == [n for n, row in enumerate(tested) if row not in fails]
    table = task_table(rows_of({("mine", "data"): records}), config)
    assert (f"{len(fails)} test rows failed" in str(table.caption)) == bool(fails)
    assert evaluate(config, model, known=records[1:]) == records or fails


def test_spare_rows_are_played_for_those_that_fail(renderer):
    records = evaluate(asked([1], 4, 2), Model(Scripted(renderer), renderer))
    assert [one.number for one in records] == [0, 2, 3, 5]


def test_rows_that_all_fail_are_one_sentence(renderer):
    with pytest.raises(ValueError, match=r"no test row could be played .*this one cannot be scored"):
        evaluate(asked(list(range(8)), 8, 64), Model(Scripted(renderer), renderer))


# -- what is left behind


def test_an_evaluation_lets_go_of_its_engine(renderer):
    engine = Scripted(renderer)
    left = weakref.ref(engine)
    gc.collect()
    gc.disable()  # what takes part in a circle would stay until it runs
    try:
        evaluate(seeing(6), Model(engine, renderer))
        del engine
        assert left() is None
    finally:
        gc.enable()
