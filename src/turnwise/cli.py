"""The command line: train, eval, compare, probe, make-model."""

import argparse
import io
import json
import os
import sys
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from turnwise import __version__
from turnwise.allocator import enough_memory, keep_freed_memory
from turnwise.config import Config
from turnwise.recipe import dump_config, find_shipped, load_config, read_tree

if TYPE_CHECKING:
    from turnwise.episodes import Episodes, Folder

_TRAIN = """\
examples:
  turnwise train babyai-quick                         the embedded model learns two tasks in minutes
  turnwise train babyai-quick seed=1 run=runs/other   override any key of the recipe
  turnwise train babyai-quick --dry-run               show every key, with its value
  turnwise train my_recipe.yaml model.path=Qwen/Qwen2.5-3B-Instruct
  turnwise train runs/babyai-quick --resume           go on after Ctrl-C or a crash, as if nothing had happened

A recipe is a short YAML file; what it does not say has the default. The run's folder then holds metrics.jsonl,
transcripts/ of some episodes, checkpoints/, and at the end model/, a Hugging Face folder. What each figure means, and
how to choose sizes, stands in docs/training.md."""

_EVAL = """\
examples:
  turnwise eval runs/babyai-quick                     a run, by its own recipe
  turnwise eval tiny babyai-quick                     the embedded model, before any training
  turnwise eval runs/babyai-quick babyai evaluation.episodes=500 evaluation.temperature=0
  turnwise eval http://127.0.0.1:8000/v1#NAME babyai  the model NAME of an OpenAI-compatible server
  turnwise eval Qwen/Qwen2.5-1.5B-Instruct --suite verlog --out results/qwen

Every player meets the same held-out levels. Beside the model play a uniformly random player and, where the
environment has one, its expert; brackets hold 95% intervals. A server's key is read from OPENAI_API_KEY. With --out,
each episode is kept as it ends, and the same command goes on after a kill."""

_COMPARE = """\
example:
  turnwise compare results/trained results/untrained

The folders are those of turnwise eval ... --out; both must hold the same levels."""

_PROBE = """\
examples:
  turnwise probe tiny babyai-quick                    what does the model do before any training?
  turnwise probe tiny babyai-quick babyai             several recipes, on one page
  turnwise probe runs/babyai-quick                    a run, by its own recipe
  turnwise probe tiny babyai evaluation.episodes=32 --memory 1 2 4 8 16 32

Plays 20 episodes a task, or fewer where there are more than 2 tasks, and says what to mend before training: in the
terminal in brief, on the page with transcripts. What each figure means stands in docs/probe.md."""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 2 a mistake in what was asked for, 130 stopped by Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # models may say what a terminal has no letters for
    arguments = _parse(argv)
    if sys.platform == "win32":
        print("turnwise: Windows is not supported; run it in WSL", file=sys.stderr)
        return 2
    keep_freed_memory()
    try:
        with enough_memory():
            return arguments.command(arguments)
    except (ValueError, FloatingPointError) as error:
        print(f"turnwise: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"turnwise: {_what_is_left(arguments)}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:  # a full disk, a folder that may not be written
        print(f"turnwise: {error}", file=sys.stderr)
        return 2


# What training alone heeds, and so neither an evaluation nor a probe; levels and seeds are the same in all of them.
_IDLE = (
    *("run", "seed", "steps", "engine", "advantage", "kl", "update", "warmup", "log", "checkpoint"),
    *("rollout.temperature", "rollout.top_p", "rollout.top_k", "rollout.max_episode_turns"),
    *("rollout.mode", "rollout.episodes", "rollout.group", "rollout.filter_groups"),
    *("environment.shares", "data.max_samples", "evaluation.every"),
)
_INSTEAD = {
    "rollout.temperature": "set evaluation.temperature",
    "log.transcript_every": "transcripts are kept by turnwise eval with --out FOLDER",
}


def _what_is_left(arguments: argparse.Namespace) -> str:
    """After Ctrl-C."""
    if arguments.command is _train:
        return "stopped at once; what the newest checkpoint holds is safe"
    if getattr(arguments, "out", None):
        return f"stopped; the episodes so far are in {arguments.out}, and the same command goes on"
    return "stopped; nothing was kept"


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """argparse takes no overrides after an option, as in `eval tiny --suite verlog model.device=cpu`: we add them."""
    parser = _parser()
    if "" in (sys.argv[1:] if argv is None else argv):
        parser.error("an argument is empty; name a variable of the shell that is set")
    arguments, rest = parser.parse_known_args(argv)
    strange = [word for word in rest if word.startswith("-") or "=" not in word or "overrides" not in arguments]
    if strange:
        key = next((f"; write {word.lstrip('-')}" for word in strange if "=" in word and "overrides" in arguments), "")
        parser.error(f"unrecognized arguments: {' '.join(strange)}{key}")
    if rest:
        arguments.overrides += rest
    return arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="turnwise", description="Train language-model agents by reinforcement learning over turns."
    )
    parser.add_argument("--version", action="version", version=f"turnwise {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    train = _command(commands, "train", "train an agent by a recipe", _TRAIN, _train)
    train.add_argument("recipe", metavar="RECIPE", help="a YAML file, a shipped recipe's name, or a run's folder")
    train.add_argument(
        "overrides", metavar="key=value", nargs="*", default=[], help="dotted keys, such as update.actor_lr=1e-5"
    )
    train.add_argument("--resume", action="store_true", help="go on with a run from its newest checkpoint")
    train.add_argument("--dry-run", action="store_true", help="print every key, then stop; models are not opened")

    evaluate = _command(commands, "eval", "say how good a run or a model is", _EVAL, _evaluate)
    who = "a run's folder, a model's folder, a hub id, tiny, URL#MODEL of a server, random, or expert"
    evaluate.add_argument("player", metavar="PLAYER", help=who)
    evaluate.add_argument("recipe", metavar="RECIPE", nargs="?", help="the environment and protocol; a run has its own")
    evaluate.add_argument("overrides", metavar="key=value", nargs="*", help="dotted keys, such as evaluation.episodes")
    evaluate.add_argument("--suite", help="play this instead of a recipe: verlog, balrog, or a YAML file")
    evaluate.add_argument("--out", metavar="FOLDER", type=Path, help="keep episodes and results there, and go on there")
    evaluate.add_argument("--json", metavar="FILE", type=Path, help="write the figures to a file too")

    compare = _command(commands, "compare", "compare two evaluations, level by level", _COMPARE, _compare)
    compare.add_argument("a", metavar="FOLDER_A", type=Path)
    compare.add_argument("b", metavar="FOLDER_B", type=Path)

    probe = _command(commands, "probe", "see what a model does zero-shot, before any training", _PROBE, _probe)
    probe.add_argument("player", metavar="RUN_OR_MODEL", help="a run's folder, a model's folder, a hub id, or tiny")
    probe.add_argument("words", metavar="RECIPE | key=value", nargs="*", help="recipes; overrides hold for all of them")
    sizes = {"metavar": "TURNS", "type": int, "nargs": "+", "default": []}
    probe.add_argument("--memory", **sizes, help="play again with a window of so many turns, for each of these")
    probe.add_argument("--html", metavar="FILE", type=Path, default=Path("probe.html"), help="default: probe.html")
    probe.add_argument("--json", metavar="FILE", type=Path, help="write the figures to a file too")

    make = _command(commands, "make-model", "make a small model anew", "", _make_model)
    make.add_argument("folder", metavar="FOLDER", type=Path, help="where to write it")
    models = ("tiny", "tiny-games", "tiny-tools")
    make.add_argument("--model", choices=models, default="tiny", help="which one (default tiny)")
    make.add_argument("--seed", type=int, default=0, help="of demonstrations, weights and order (default 0)")
    return parser


def _command(commands, name: str, summary: str, text: str, function) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name, help=summary, description=summary, epilog=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.set_defaults(command=function)
    return parser


def _train(arguments: argparse.Namespace) -> int:
    config = _config(arguments.recipe, arguments.overrides)
    if arguments.dry_run:
        from turnwise.envs.checked import try_environment

        for agent in config.every_agent.values():
            agent.find("agent")
        for task in config.tasks if config.agent.use == "gym" else ():
            try_environment(config.environment, task)
        print(dump_config(config), end="")
        return 0
    from turnwise.train import train

    if train(config, arguments.resume):
        print(f"Done. How good is it? turnwise eval {config.run}")
        return 0
    print(f"Stopped and saved. Go on with: turnwise train {config.run} --resume")
    return 130


def _evaluate(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from turnwise.engines.chat import is_address
    from turnwise.episodes import Folder, protocol_of
    from turnwise.players import OTHERS, fingerprint, newest_of, settled
    from turnwise.results import figure_table, files_of, rows_of, suite_table, task_table
    from turnwise.run import is_writable
    from turnwise.suite import split_missing

    run = _run_of(arguments.player)
    _refuse_unwritable(arguments.json)
    console = Console()
    own = run / "eval.json" if run and not arguments.suite else None
    if own and not is_writable(own.parent):
        console.print(f"{own} is not written, since the run may only be read", markup=False)
        own = None
    suite = _asked(arguments, run)
    ready, missing = split_missing(suite) if arguments.suite else (suite, {})
    for name, why in missing.items():
        console.print(f"{name} is left out: {why}", markup=False)
    player = str(run or arguments.player)
    trained = newest_of(run) if run else None
    folder = None
    if arguments.out:
        here = player not in OTHERS and not is_address(player)
        asked = {name: settled(config) for name, config in suite.items()} if here else suite
        folder = Folder(arguments.out, protocol_of(player, fingerprint(trained or Path(player)), asked))
    episodes = _play(player, trained, ready, folder)
    rows = rows_of(episodes)
    files = files_of(rows, ready, list(missing))
    if folder:
        folder.finish(episodes, files)
    for file in (arguments.json, own):
        if file is not None:
            file.write_text(files["results.json"], encoding="utf-8")
    # At last: who reads it may have gone.
    console.print(suite_table(rows, list(missing)) if arguments.suite else task_table(rows, *suite.values()))
    if not arguments.suite and (counted := figure_table(rows)):
        console.print(counted)
    return 0


def _asked(arguments: argparse.Namespace, run: Path | None) -> Mapping[str, Config]:
    """What to play: the environments of a suite, or the one of a recipe."""
    from turnwise.players import OTHERS
    from turnwise.suite import load_suite

    player, recipe, overrides = arguments.player, arguments.recipe, arguments.overrides
    if recipe is not None and "=" in recipe:
        recipe, overrides = None, [recipe, *overrides]
    blocks = read_tree(find_shipped("suite", arguments.suite)) if arguments.suite else ()
    _refuse_idle(overrides, player, blocks, heeded=("log.transcript_every",) if arguments.out else ())
    if arguments.suite and recipe is not None:
        raise ValueError(f"both the suite {arguments.suite} and the recipe {recipe} say what to play; give one")
    is_model = run is None and player not in OTHERS
    if arguments.suite and run:
        own = _config(player, _of_model(overrides))
        suite = load_suite(arguments.suite, overrides, own.model_dump(include={"parser"}))
        return {name: config.model_copy(update={"model": own.model}) for name, config in suite.items()}
    if arguments.suite:  # whatever its blocks say of a model, and at last, since a block may replace the whole group
        return load_suite(arguments.suite, [*overrides, *_named(player)] if is_model else overrides)
    if recipe is None and run is None:
        raise _nothing_to_play(player)
    config = _config(recipe or player, overrides) if player in OTHERS else _played(recipe or player, player, overrides)
    return {config.environment.id.rpartition(":")[2] if config.data is None else "data": config}


def _played(recipe: str, player: str, overrides: Sequence[str]) -> Config:
    """A recipe as a model plays it; a run brings its own model along."""
    if _run_of(player) is None:
        return _config(recipe, [*overrides, *_named(player)])
    own = _config(player, _of_model(overrides))
    return _config(recipe, overrides).model_copy(update={"model": own.model})


def _named(player: str) -> list[str]:
    """The override by which a model plays."""
    return [f"model.path={json.dumps(player)}"]


def _of_model(overrides: Sequence[str]) -> list[str]:
    return [word for word in overrides if word.startswith("model.")]


def _nothing_to_play(player: str) -> ValueError:
    return ValueError(f"{player!r} is not a run, so a recipe must say what to play: add one, or check the folder")


def _run_of(player: str) -> Path | None:
    """The folder of the run that a player is, if it is one."""
    return Path(player) if (Path(player) / "config.yaml").is_file() else None


def _play(player: str, trained: Path | None, suite: Mapping[str, Config], folder: "Folder | None") -> "Episodes":
    """The player's episodes, and those of chance and the expert."""
    from rich.markup import escape

    from turnwise.players import OTHERS, Model, open_player
    from turnwise.suite import play_suite
    from turnwise.terminal import progress_bar

    if player in OTHERS:
        players = {player: OTHERS[player], **OTHERS}
    else:
        longest = max(suite.values(), key=lambda one: one.rollout.max_prompt_tokens + one.rollout.max_reply_tokens)
        model = Model(*open_player(longest, trained))
        players = {player: lambda _: model, **OTHERS}
    with progress_bar() as progress:
        bar = progress.add_task("")

        def begin(key: tuple[str, str], episodes: int, known: int) -> None:
            progress.reset(bar, total=episodes, completed=known, description=escape(" on ".join(key)))

        def missed(key: tuple[str, str], why: str) -> None:
            progress.console.print(f"{' on '.join(key)} is left out: {why}", markup=False)

        return play_suite(suite, players, folder, begin, lambda: progress.advance(bar), missed)


def _compare(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from turnwise.compare import compare, difference_table

    found = compare(arguments.a, arguments.b)
    Console().print(difference_table(found, arguments.a, arguments.b))
    return 0


def _probe(arguments: argparse.Namespace) -> int:
    recipes = [word for word in arguments.words if "=" not in word]
    overrides = [word for word in arguments.words if "=" in word]
    from turnwise.engines.chat import is_address

    run = _run_of(arguments.player)
    if not recipes and run is None:
        raise _nothing_to_play(arguments.player)
    if is_address(arguments.player):
        raise ValueError(f"{arguments.player} keeps its tokens to itself, so it cannot be probed; use turnwise eval")
    _refuse_idle(overrides, arguments.player)
    _refuse_unwritable(arguments.html, arguments.json)
    configs = {recipe: _played(recipe, arguments.player, overrides) for recipe in recipes or [arguments.player]}

    from turnwise.players import newest_of
    from turnwise.probe.command import run_probes
    from turnwise.probe.play import Plan

    whole = any(word.startswith("evaluation.episodes=") for word in overrides)
    plans = [Plan(recipe, config, arguments.memory, whole) for recipe, config in configs.items()]
    run_probes(plans, newest_of(run) if run else None, arguments.html, arguments.json)
    return 0


def _refuse_idle(
    overrides: Sequence[str], player: str, blocks: Container[str] = (), heeded: Sequence[str] = ()
) -> None:
    """Overrides may be for one of the `blocks` of a suite."""
    for text in overrides:
        key = text.partition("=")[0]
        block, _, rest = key.partition(".")
        key = rest if block in blocks else key
        if key in heeded:
            continue
        if key == "model.path":
            raise ValueError(f"both {player} and {text} say who plays; name the model in the place of {player}")
        if key == "model" and _run_of(player):
            raise ValueError(
                f"{text} would replace the model of {player}; name one key of it, such as model.device=cpu"
            )
        if f"{key}.".startswith("model.lora.") and _run_of(player):
            raise ValueError(f"{text} would be other adapters than those that {player} has trained; leave it out")
        if any(f"{key}.".startswith(f"{idle}.") for idle in _IDLE):
            raise ValueError(f"{text} does nothing where nobody learns; {_INSTEAD.get(key, 'leave it out')}")


def _refuse_unwritable(*files: Path | None) -> None:
    """Before anything is played, since what was played would be lost."""
    from turnwise.run import is_writable

    for file in filter(None, files):
        folder = file.absolute().parent
        if file.is_dir() or not folder.is_dir() or not is_writable(folder):
            raise ValueError(f"{file} cannot be written: name a file in a folder that exists")


def _make_model(arguments: argparse.Namespace) -> int:
    from turnwise.models.make_tiny import Recipe, make_tiny
    from turnwise.models.teach_babyai import BabyAITeacher
    from turnwise.models.teach_calculator import CalculatorTeacher
    from turnwise.models.teach_games import GamesTeacher
    from turnwise.run import is_writable

    teachers = {"tiny": BabyAITeacher, "tiny-games": GamesTeacher, "tiny-tools": CalculatorTeacher}
    if not is_writable(arguments.folder):
        raise ValueError(f"nothing can be written to {arguments.folder}; name another folder")
    recipe = Recipe(seed=arguments.seed)
    if arguments.model == "tiny-games":  # more levels beat more epochs
        recipe = replace(recipe, epochs=1, lead=14_000, quiet=0.05, look_back=6)
    make_tiny(arguments.folder, teachers[arguments.model](), recipe)
    return 0


def _config(recipe: str, overrides: Sequence[str]) -> Config:
    """A run's folder stands for the configuration that it was started with, wherever it is by now."""
    saved = Path(recipe) / "config.yaml"
    if saved.is_file():
        return load_config(saved, [f"run={json.dumps(recipe)}", *overrides])
    return load_config(recipe, overrides)
