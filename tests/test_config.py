from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from turnwise.advantages.gae import DualGAE
from turnwise.config import Config, WarmupConfig
from turnwise.memory.window import Window
from turnwise.parse import ThinkAct
from turnwise.recipe import dump_config, find_shipped, load_config, parse_config

RECIPE = """\
seed: 7
steps: 20
environment:
  id: package.module:Maze
  tasks:
    small: {size: 5}
    large: {size: 9}
memory: {use: window, turns: 2}
advantage: {use: dual_gae, step_gamma: 0.9}
rollout: {n_env: 4, e_len: 8}
update:
  minibatch: 16
  actor_lr: 1e-5   # YAML reads this as text
  grad_clip: 5e-1
"""


BABYAI = "turnwise.envs.babyai:BabyAIText"
CRITICLESS = "model: {critic: none}\nadvantage: {use: rloo}\nrollout: {episodes: 1, group: 8}\n"


class Bulky:
    """A memory that cannot be made."""

    span = 0

    def __init__(self, size: Any):
        raise TypeError(f"invalid literal {size}")


@dataclass(frozen=True)
class Forgetful:
    """A memory of somebody else."""

    size: int = 1
    span = 0

    async def prompt(self, past: Any, index: int, observation: Any, ask: Any) -> list[Any]:
        return []


@pytest.fixture
def load(tmp_path):
    def load(text: str, *overrides: str) -> Config:
        path = tmp_path / "maze.yaml"
        path.write_text(text)
        played = () if "environment" in text or "data" in text else (f"environment.id={BABYAI}",)
        return load_config(path, (*played, *overrides))

    return load


def mistake(load, text: str, *overrides: str) -> str:
    """The one sentence with which a recipe is refused."""
    with pytest.raises(ValueError) as caught:
        load(text, *overrides)
    message = str(caught.value)
    assert type(caught.value) is ValueError
    assert message
    assert len(message.splitlines()) == 1
    return message


def test_a_recipe_sets_what_it_names_and_nothing_else(load):
    config = load(RECIPE)
    assert (config.seed, config.steps, config.rollout.n_env, config.update.minibatch) == (7, 20, 4, 16)
    assert config.environment.tasks == {"small": {"size": 5}, "large": {"size": 9}}
    assert config.memory.make("memory") == Window(turns=2)
    assert config.advantage.make("advantage") == DualGAE(step_gamma=0.9)
    assert config.update.epochs == Config().update.epochs
    assert config.warmup == Config().warmup
    assert config.run == "runs/maze"


def test_numbers_such_as_1e_5_are_numbers(load):
    config = load(RECIPE, "update.critic_lr=3e-4")
    assert (config.update.actor_lr, config.update.critic_lr, config.update.grad_clip) == (1e-5, 3e-4, 0.5)


def test_overrides_win_over_the_recipe_and_later_ones_over_earlier(load):
    overrides = ["seed=8", "update.epochs=2", "update.epochs=3", "memory.turns=4", "update.grad_clip=null", "run=x"]
    config = load(RECIPE, *overrides, "log.trackers=[tensorboard]")
    assert (config.seed, config.update.epochs, config.run, config.update.grad_clip) == (8, 3, "x", None)
    assert config.memory.make("memory") == Window(turns=4)
    assert [tracker.use for tracker in config.log.trackers] == ["tensorboard"]
    assert config.update.minibatch == 16


def test_an_override_may_hold_an_equals_sign(load):
    assert load(RECIPE, "environment.instructions=a=b").environment.instructions == "a=b"


def test_a_recipe_that_says_what_is_played_has_the_defaults(load):
    assert load("") == Config(run="runs/maze")


def test_a_recipe_says_what_is_played(tmp_path):
    (tmp_path / "empty.yaml").write_text("steps: 3")
    with pytest.raises(ValueError, match=r"does not say what is to be played; give it environment\.id, or data\.train"):
        load_config(tmp_path / "empty.yaml")


@pytest.mark.parametrize(
    ("text", "overrides", "memory"),
    [
        ("memory: {use: window, turns: 3}", ["memory.use=full"], {"use": "full"}),
        ("memory: {turns: 3}", ["memory.question=Well?", "memory.use=note"], {"use": "note", "question": "Well?"}),
        ("memory: {turns: 3}", ["memory.use=window"], {"use": "window", "turns": 3}),
        ("memory: note", ["memory.use=window"], {"use": "window"}),
    ],
)
def test_another_part_leaves_nothing_of_the_one_before(load, text, overrides, memory):
    assert load(text, *overrides).memory.model_dump() == memory


def test_a_scorer_keeps_the_time_that_any_has(load):
    text = "agent: {use: single_turn}\ndata: {train: a.csv}\nreward: {use: gsm8k, method: flexible, timeout_s: 5}"
    reward = load(text, "reward.use=exact_match").reward
    assert reward and reward.model_dump() == {"use": "exact_match", "timeout_s": 5.0}


def test_a_run_below_home_is_not_below_a_folder_of_that_letter(load):
    assert load("run: ~/mazes").run == str(Path.home() / "mazes")


def test_defaults_are_those_of_the_report():
    config = Config()
    assert (config.rollout.n_env, config.rollout.e_len) == (32, 8)
    assert (config.update.minibatch, config.update.epochs) == (128, 1)
    assert (config.update.actor_lr, config.update.critic_lr, config.update.weight_decay) == (1e-6, 1e-5, 0.01)
    assert (config.update.clip, config.update.dual_clip, config.update.value_clip) == (0.2, 3.0, 0.5)
    assert (config.update.first_token_weight, config.update.entropy, config.kl.reward) == (3.0, 1e-3, 1e-3)
    assert (config.warmup.w_epoch, config.warmup.w_iter, config.warmup.w_frac) == (40, 5, 0.1)
    assert config.environment.invalid_penalty == 0.1
    assert config.advantage.make("advantage") == DualGAE(0.99, 0.95, 1.0, 1.0)
    assert config.memory.make("memory") == Window(turns=1)


DATA = "data: {train: rows.csv, convert: {use: gsm8k}}\nreward: {use: gsm8k, method: flexible}\nagent: {use: tool}"


@pytest.mark.parametrize("text", ["", RECIPE, CRITICLESS, DATA, "environment: {id: 'CartPole-v1', actions: [a, ü]}"])
def test_a_dumped_configuration_reads_back_equal(load, tmp_path, text):
    config = load(text)
    path = tmp_path / "copy.yaml"
    path.write_text(dump_config(config))
    assert load_config(path) == config


@pytest.mark.parametrize(
    "given", [{1: 0.5, 5: 1.0}, "1e5", "2026-11-30", "yes", "null", 1e5, 1e-7, [1, [2.0]], {"a": {2: 3}}]
)
def test_what_environments_and_parts_are_given_reads_back_as_it_was(tmp_path, given):
    tree = {"environment": {"id": "helpers:Ladder", "kwargs": {"given": given}, "tasks": {"1e3": {"more": given}}}}
    config = parse_config(tree)
    path = tmp_path / "copy.yaml"
    path.write_text(dump_config(config))
    again = load_config(path)
    assert again.environment == config.environment
    assert type(again.environment.kwargs["given"]) is type(given)


def test_what_no_recipe_can_say_is_refused_in_one_sentence():
    config = parse_config({"environment": {"id": "helpers:Ladder", "kwargs": {"given": object()}}})
    with pytest.raises(ValueError, match="the configuration holds what no recipe can say"):
        dump_config(config)


def test_one_file_may_stand_alone_and_a_tenth_of_it_is_held_out(load):
    config = load("agent: {use: tool}\ndata: {train: rows.csv}")
    assert (config.data.train, config.data.share_held_out) == (["rows.csv"], 0.1)
    assert load("agent: {use: tool}\ndata: {train: rows.csv, held_out: 0.3}").data.share_held_out == 0.3
    assert load("agent: {use: tool}\ndata: {train: [a.csv, b.csv], test: c.csv}").data.share_held_out is None
    assert Config().data is None and Config().reward is None


def test_one_task_is_named_after_the_environment(load):
    assert load("environment: {id: 'a.b:Maze'}").environment.tasks == {"Maze": {}}


# -- components


def test_a_component_of_ones_own_is_named_by_module_and_class(load):
    config = load(f"memory: {{use: '{__name__}:Forgetful', size: 3}}")
    assert config.memory.make("memory") == Forgetful(3)


def test_a_component_without_arguments_is_a_name(load):
    config = load("memory: full", "advantage=gae")
    assert (config.memory.use, config.advantage.use) == ("full", "gae")
    assert config == load("memory: {use: full}\nadvantage: {use: gae}")


def test_the_framework_adds_what_it_knows(load):
    parser = load("parser: {use: think_act, cue: 'Well?'}").parser.make("parser", actions=["a"], default="a")
    assert parser == ThinkAct(["a"], "a", cue="Well?")


def test_limits_of_the_estimator_have_short_names(load):
    assert load("advantage: {use: monte_carlo}").advantage.make("advantage") == DualGAE(1, 1, 1, 1)
    plain = load("advantage: {use: gae, gamma: 0.9, lam: 0.8}").advantage.make("advantage")
    assert plain == DualGAE(0.9, 0.8, 0.9, 0.8)


def test_without_a_critic_there_is_no_warm_up(load):
    for text in (CRITICLESS, CRITICLESS + "warmup: {w_epoch: 0}"):
        assert load(text).warmup.w_epoch == 0
    assert load("").warmup.w_epoch == 40  # the defaults are nobody's to change


def test_what_follows_from_other_keys_is_not_kept_as_a_choice(load, tmp_path):
    """A run is a recipe for others, whose keys may be swapped."""
    free, rows = tmp_path / "free.yaml", tmp_path / "rows.yaml"
    free.write_text(dump_config(load(CRITICLESS)))
    other = load_config(free, ["model.critic=separate", "advantage=gae", "rollout.episodes=null", "rollout.group=1"])
    assert other.warmup == WarmupConfig()
    rows.write_text(dump_config(load("agent: {use: tool}\ndata: {train: rows.csv}\nreward: {use: gsm8k}")))
    assert load_config(rows, ["data.test=other.csv"]).data.share_held_out is None


def test_an_agent_of_ones_own_may_heed_what_those_that_ship_do_not(load):
    text = "agent: {use: 'a:B'}\ndata: {train: rows.csv}\nmemory: {turns: 3}\nenvironment: {reward: native}"
    config = load(text, "rollout.max_episode_turns=3")
    assert (config.memory.arguments, config.rollout.max_episode_turns) == ({"turns": 3}, 3)


@pytest.mark.parametrize("override", ["memory.turns=2", "advantage.step_gamma=0.9", "parser.cue=Well?"])
def test_an_argument_of_the_default_component_needs_no_use(load, override):
    key, _, value = override.partition("=")
    kind, _, argument = key.partition(".")
    assert str(load("", override).model_dump()[kind][argument]) == value


# -- mistakes: one sentence each, with the key and the value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # unknown keys, with the nearest
        ("sed: 3", ["unknown key sed", "did you mean 'seed'"]),
        ("update: {ephocs: 3}", ["unknown key update.ephocs", "did you mean 'update.epochs'"]),
        ("zzz: 3", ["unknown key zzz", "seed"]),
        ("advantage: grpoo", ["advantage.use is 'grpoo'; did you mean 'grpo'? Or write your own as module:Class"]),
        ("steps: 1\nsteps: 2", ["the key steps stands there twice"]),
        # arguments of parts
        ("memory: {clear_every: 2.5}", ["memory.clear_every is 2.5; it must be a valid integer"]),
        ("memory: {turns: }", ["memory.turns is null; it must be a valid integer"]),
        ("memory: {use: note, question: 5}", ["memory.question is 5; it must be a valid string"]),
        ("parser: {cue: 5}", ["parser.cue is 5; it must be a valid string"]),
        ("advantage: {step_gamma: abc}", ["advantage.step_gamma is 'abc'; it must be a valid number"]),
        ("1: 2", ["unknown key 1"]),
        # what does nothing
        ("environment: {processes: 2}", ["environment.processes=2 does nothing", "set environment.workers=process"]),
        ("environment: {tasks: {a: {}}, shares: {b: 2}}", ["environment.shares names b", "there are a"]),
        (
            "agent: {use: tool}\ndata: {train: rows.csv}\nenvironment: {tasks: {a: {}}, shares: {a: 2}}",
            ["environment.shares does nothing"],
        ),
        (
            "agent: {use: tool}\ndata: {train: rows.csv}\nrollout: {max_episode_turns: 3}",
            ["rollout.max_episode_turns=3 does nothing", "agent.max_turns"],
        ),
        (
            "agent: {use: tool}\ndata: {train: rows.csv}\nmemory: {turns: 3}",
            ["memory.turns=3 does nothing where samples are played"],
        ),
        (
            "agent: {use: tool}\ndata: {train: rows.csv}\nmemory: {use: full}",
            ["memory.use=full does nothing where samples are played"],
        ),
        (
            "agent: {use: tool}\ndata: {train: rows.csv}\nparser: {cue: Well}",
            ["parser.cue=Well does nothing where samples are played", "or take a recipe that plays samples"],
        ),
        (
            "agent: {use: tool}\ndata: {train: rows.csv}\nenvironment: {reward: native}",
            ["environment.reward=native does nothing where samples are played"],
        ),
        (
            "agent: {use: tool}\nagents: {other: {use: gym}}\ndata: {train: rows.csv}",
            ["agents.other.use is gym", "never see the samples", "agents.other.use=tool"],
        ),
        ("environment: {tasks: {a: {}, b: {}}, shares: {a: 40}}", ["n_env=32", "cannot hold 2 tasks", "41 in all"]),
        # wrong kinds of values
        ("update: {epochs: two}", ["update.epochs", "'two'", "integer"]),
        ("update: 3", ["update is 3", "epochs"]),
        ("update:", ["update is null", "epochs"]),
        ("seed: {a: 1}", ["seed is {'a': 1}", "integer"]),
        ("run: 5", ["run is 5", "string"]),
        ("run: []", ["run is []", "string"]),
        ("steps: true", ["steps is True", "integer"]),
        ("update: {actor_lr: true}", ["update.actor_lr is True", "number"]),
        ("rollout: {episodes: 1, group: 2, filter_groups: 1}", ["rollout.filter_groups is 1", "boolean"]),
        ("memory: {turns: true}", ["memory.turns is True", "integer"]),
        ("memory:", ["memory is null", "a name, or a group of keys with `use`"]),
        ("agents: {other: {use: tool}}", ["agents names other", "set data.train"]),
        ("steps: .nan", ["steps is nan"]),
        ("update: {actor_lr: .inf}", ["update.actor_lr is inf", "finite"]),
        ("update: {whiten: perhaps}", ["update.whiten is 'perhaps'"]),
        ("memory: [window]", ["memory is ['window']", "a name, or a group of keys with `use`"]),
        ("environment: {tasks: {goto: }}", ["environment.tasks.goto is null"]),
        ("data:\nreward: {use: gsm8k}", ["reward.use=gsm8k", "data.train"]),
        ("data: {}", ["data.train", "data.generate"]),
        ("data: {train: a.csv, generate: {use: arithmetic}}", ["either data.train", "data.generate"]),
        ("data: {generate: {use: arithmetic}, test: a.csv}", ["data.test does nothing", "data.generate"]),
        ("data: {generate: {use: arithmetic}, held_out: 0.2}", ["data.held_out=0.2 does nothing"]),
        ("data: {train: a.csv, test: b.csv, held_out: 0.2}", ["data.held_out=0.2 does nothing"]),
        ("data: {train: a.csv, held_out: 1}", ["data.held_out is 1", "less than 1"]),
        ("data: {train: a.csv, max_samples: 0}", ["data.max_samples is 0"]),
        ("data: {train: 3}", ["data.train is 3", "list"]),
        ("data: {trian: a.csv}", ["unknown key data.trian", "did you mean 'data.train'"]),
        ("data: {generate: {use: arithmetik}}", ["data.generate.use is 'arithmetik'", "did you mean 'arithmetic'"]),
        ("data: {generate: {use: arithmetic, levl: 2}}", ["unknown key data.generate.levl", "did you mean 'level'"]),
        ("data: {generate: {use: arithmetic, level: 9}}", ["data.generate.level is 9"]),
        ("data: {train: a.csv, convert: {use: gsm8k, tool: abacus}}", ["data.convert.tool is 'abacus'"]),
        # out of range
        ("rollout: {e_len: 0}", ["rollout.e_len is 0", "greater than 0"]),
        ("rollout: {temperature: 0}", ["rollout.temperature is 0", "greater than 0"]),
        ("update: {clip: 1.0}", ["update.clip is 1.0", "less than 1"]),
        ("update: {dual_clip: 1}", ["update.dual_clip is 1", "greater than 1"]),
        ("checkpoint: {keep: 0}", ["checkpoint.keep is 0", "greater than 0"]),
        ("update: {lr_schedule: Cosine}", ["update.lr_schedule is 'Cosine'", "'cosine'"]),
        ("log: {trackers: [wandb]}", ["log.trackers.use is 'wandb'", "there are tensorboard", "module:Class"]),
        # keys that do not fit together
        ("update: {minibatch: 500}", ["update.minibatch is 500", "256", "rollout.n_env", "rollout.e_len"]),
        ("update: {minibatch: 100}", ["update.minibatch=100", "256", "divide"]),
        ("kl: {schedule: adaptive, reward: 0}", ["kl.schedule=adaptive", "kl.reward is 0"]),
        (
            "rollout: {n_env: 1}\nupdate: {minibatch: 8}\nenvironment: {tasks: {a: {}, b: {}}}",
            ["rollout.n_env=1", "2 tasks"],
        ),
        # components
        # a critic, or none
        ("rollout: {episodes: 1, e_len: 4}", ["rollout.e_len=4 does nothing while rollout.episodes is 1"]),
        ("rollout: {filter_groups: true}", ["rollout.filter_groups does nothing", "rollout.group=8"]),
        ("rollout: {group: 4}", ["rollout.group=4 compares whole episodes", "set rollout.episodes=1"]),
        (
            "rollout: {group: 3, episodes: 1}",
            ["rollout.n_env=32 slots cannot be shared out to groups of rollout.group=3"],
        ),
        ("model: {critic: none}\nadvantage: {use: grpo}", ["advantage.use=grpo compares whole episodes", "episodes=1"]),
        *(
            (
                f"model: {{critic: none}}\nadvantage: {{use: {use}}}\nrollout: {{episodes: 1}}",
                [f"advantage.use={use} compares episodes", "rollout.group=1", "set rollout.group=8"],
            )
            for use in ("grpo", "rloo", "reinforce_plus_plus_baseline")
        ),
        ("kl: {target: 0.5}", ["kl.target=0.5 does nothing", "kl.schedule is fixed", "set kl.schedule=adaptive"]),
        (
            "environment: {workers: inline, timeout_s: 5}",
            ["environment.timeout_s=5.0 does nothing", "environment.workers is inline"],
        ),
        ("data: {generate: {use: arithmetic}}", ["agent.use is gym", "set another, such as agent.use=tool"]),
        ("model: {critic: none}", ["advantage.use=dual_gae reads values", "model.critic=none", "advantage.use=grpo"]),
        ("advantage: {use: rloo}", ["model.critic=separate would learn nothing", "advantage.use=rloo", "critic=none"]),
        (
            CRITICLESS + "warmup: {w_epoch: 3}",
            ["warmup.w_epoch=3 does nothing", "model.critic is none", "leave out what a critic alone heeds"],
        ),
        (
            "model: {critic: none}\nadvantage: {use: grpo}\nrollout: {episodes: 1, group: 8}",
            ["kl.reward=0.001 is part of the returns", "set kl.reward=0", "advantage.divide_by_std=false"],
        ),
        (
            "model: {critic: none}\nadvantage: reinforce_plus_plus_baseline\nrollout: {episodes: 1, group: 8}",
            ["kl.reward=0.001 is part of the returns", "or update.whiten=false"],
        ),
        (
            "model: {critic: none}\nadvantage: rloo\nrollout: {episodes: 1, group: 8}\nupdate: {whiten: true}",
            ["kl.reward=0.001 is part of the returns", "or update.whiten=false"],
        ),
        (CRITICLESS + "warmup: {tolerance: 0.5}", ["warmup.tolerance=0.5 does nothing"]),
        (CRITICLESS + "update: {critic_lr: 1e-4}", ["update.critic_lr=0.0001 does nothing"]),
        (
            CRITICLESS + "warmup: {w_epoch: 3, w_iter: 2}",
            ["warmup.w_iter=2, warmup.w_epoch=3 do nothing", "(the defaults are 5, 40)"],
        ),
        (CRITICLESS + "update: {value_clip: null}", ["update.value_clip=None does nothing"]),
        (CRITICLESS + "update: {first_token_weight: 1}", ["update.first_token_weight=1.0 does nothing"]),
        (
            f"advantage: {{use: '{__name__}:Forgetful'}}",
            [f"advantage.use is '{__name__}:Forgetful'", "class attributes critic, groups and whiten"],
        ),
        ("memory: {use: 'turnwise.parse:ThinkAct'}", ["memory.use", "has no span and no prompt"]),
        (f"parser: {{use: '{__name__}:Forgetful'}}", ["parser: ", "cannot be made", "'actions'"]),
        ("memory: {use: windw}", ["memory.use is 'windw'", "did you mean 'window'", "module:Class"]),
        ("advantage: {use: zzz}", ["advantage.use is 'zzz'", "bi_level_gae, dual_gae, gae, gigpo, grpo, monte_carlo"]),
        ("memory: {use: window, turn: 2}", ["unknown key memory.turn", "did you mean 'turns'"]),
        ("memory: {use: window, turns: -1}", ["memory.turns is -1"]),
        ("memory: {use: window, turns: two}", ["memory.turns is 'two'; it must be a valid integer"]),
        ("advantage: {use: dual_gae, step_gamma: 1.5}", ["advantage.step_gamma is 1.5", "between 0 and 1"]),
        ("advantage: {use: gae, gama: 1}", ["unknown key advantage.gama", "did you mean 'gamma'"]),
        ("parser: {use: think_act, actions: [a]}", ["unknown key parser.actions", "cue"]),
        (
            "memory: {use: 'turnwise.nowhere:Window'}",
            ["memory.use is 'turnwise.nowhere:Window'", "No module", "PATH"],
        ),
        ("memory: {use: 'turnwise.memory.window:Widow'}", ["memory.use", "has no Widow"]),
        (
            f"memory: {{use: '{__name__}:Bulky', size: big}}",
            ["cannot be made of {'size': 'big'}", "invalid literal", "(test_config.py, line "],
        ),
        ("environment: {reward: native}", ["does not say what is to be played", "environment.id"]),
        (
            "data: {train: [a.jsonl]}\nagent: single_turn",
            ["agent.use=single_turn earns nothing without a reward", "reward.use"],
        ),
        # not a recipe at all
        ("update: [", ["maze.yaml", "not YAML", "line 1"]),
        ("a: 1\n\tb: 2", ["maze.yaml", "not YAML"]),
        ("- a\n- b", ["maze.yaml", "keys and values"]),
    ],
)
def test_a_mistake_in_a_recipe_is_one_sentence(load, text, words):
    message = mistake(load, text)
    assert [word for word in words if word not in message] == [], message


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("seed", ["'seed' is not an override", "dotted.key=value"]),
        ("update.ephocs=3", ["unknown key update.ephocs", "did you mean 'update.epochs'"]),
        ("update.epochs=two", ["update.epochs is 'two'"]),
        ("update.epochs=[", ["'update.epochs=['", "not YAML"]),
        ("seed.x=5", ["cannot set seed.x", "seed is 1, not a group of keys"]),
        ("rollout.e_len=0", ["rollout.e_len is 0"]),
        ("=5", ["'=5' is not an override"]),
        ("update.minibatch=100", ["update.minibatch=100 does not divide", "make it "]),
    ],
)
def test_a_mistake_in_an_override_is_one_sentence(load, override, words):
    message = mistake(load, "seed: 1", override)
    assert [word for word in words if word not in message] == [], message


@pytest.mark.parametrize("chosen", ["memory=note", "memory.use=note"])
def test_a_part_is_chosen_before_its_keys_wherever_it_stands(load, chosen):
    config = load("memory: {turns: 3}", "memory.question=Well?", chosen)
    assert config.memory.model_dump() == {"use": "note", "question": "Well?"}


def test_a_fault_inside_a_module_is_told_with_its_line(load, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "faulty_memory.py").write_text("import math\nmath.tau_\n")
    message = mistake(load, "memory: 'faulty_memory:Own'")
    assert "memory.use is 'faulty_memory:Own', which cannot be imported: AttributeError" in message
    assert "(faulty_memory.py, line 2)" in message


@pytest.mark.parametrize(
    ("tree", "override", "key", "value"),
    [
        ("memory: window", "memory.turns=3", "memory", {"use": "window", "turns": 3}),
        ("model: {lora: null}", "model.lora.rank=4", "model.lora.rank", 4),
        ("rollout:", "rollout.n_env=7", "rollout.n_env", 7),
    ],
)
def test_an_override_reaches_into_what_is_empty_or_named_alone(load, tree, override, key, value):
    found = load(tree, override, "rollout.e_len=128", "update.minibatch=128").model_dump()
    for part in key.split("."):
        found = found[part]
    assert found == value


@pytest.mark.parametrize("use", ["':Window'", "'.window:Window'", "'os:sep'"])
def test_a_component_that_is_no_class_is_one_sentence(load, use):
    assert f"memory.use is {use}" in mistake(load, f"memory: {{use: {use}}}")


def test_numbers_such_as_9e_1_are_numbers_for_components_too(load):
    assert load("advantage: {use: gae, gamma: 9e-1}").advantage.make("advantage") == DualGAE(0.9, 1.0, 0.9, 1.0)


def test_a_missing_recipe_is_one_sentence():
    with pytest.raises(ValueError) as caught:
        load_config("nowhere/at_all.yaml")
    assert str(caught.value).startswith(
        "recipe 'nowhere/at_all.yaml' is neither a file, nor the folder of a run, nor a shipped"
    )
    assert "\n" not in str(caught.value)


def test_a_path_goes_before_a_shipped_name(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text("seed: 1")
    assert find_shipped("recipe", path) == find_shipped("recipe", str(path)) == path


def test_a_tree_of_keys_is_validated_without_a_file():
    assert parse_config({"seed": 3}) == Config(seed=3)
    with pytest.raises(ValueError, match="unknown key sed"):
        parse_config({"sed": 3})
