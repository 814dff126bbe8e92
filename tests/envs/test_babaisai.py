"""Baba-Is-AI as text: rules on small boards, levels by seed and task, the way to win, ends, wording and picture."""

import contextlib
import io
import os
import random
import re
import subprocess
import sys
import warnings
from collections import deque

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from turnwise.envs.baba_levels import TASKS, draw
from turnwise.envs.baba_rules import ACTIONS, BORDER, COLOURS, IS, NOUNS, PROPERTIES, Rule, Thing, World, step, word
from turnwise.envs.baba_solver import solve
from turnwise.envs.babaisai import LIMIT, BabaIsAI, describe

STOPPED = "WALL IS STOP"
YOU = "BABA IS YOU"


def board(*rows: str) -> World:
    """A world with a border around it. Words are in capitals, `.` is empty, `ball+baba` is a baba on a ball."""
    cells = [[tuple(map(thing, cell.split("+"))) if cell != "." else () for cell in row.split()] for row in rows]
    width = max(map(len, cells)) + 2
    edge = ((BORDER,),)
    inside = [edge + tuple(row) + ((),) * (width - 2 - len(row)) + edge for row in cells]
    return World(width, tuple(cell for row in [edge * width, *inside, edge * width] for cell in row))


def thing(name: str) -> Thing:
    if name.isupper():
        return IS if name == "IS" else word(name.lower())
    colour, _, kind = name.rpartition(":")
    return Thing("object", kind, colour)


def drawn(world: World) -> list[str]:
    """The rows of a board again."""
    rows = []
    for start in range(world.width, len(world.cells) - world.width, world.width):
        cells = world.cells[start + 1 : start + world.width - 1]
        rows.append(" ".join("+".join(map(sign, stack)) or "." for stack in cells))
    return rows


def sign(one: Thing) -> str:
    return f"{one.colour}:{one.name}".lstrip(":") if one.kind == "object" else one.name.upper()


def staged(*rows: str, **arguments: str) -> BabaIsAI:
    """An environment with a level laid out by hand."""
    env = BabaIsAI(**arguments)
    env.reset(seed=0)
    env.world = env._level = board(*rows)
    return env


def play(env: BabaIsAI, seed: int, noise: float = 0.0) -> tuple[bool, list[str]]:
    """Let the expert play, now and then overruled at random; whether it won, and the actions."""
    env.reset(seed=seed)
    rng, actions, ended, info = random.Random(seed), [], False, {}
    while not ended:
        actions.append(rng.choice(ACTIONS) if rng.random() < noise else env.expert())
        _, _, terminated, truncated, info = env.step(actions[-1])
        ended = terminated or truncated
    return info["success"], actions


# Rules


@pytest.mark.parametrize(
    ("rows", "rules"),
    [
        (["BABA IS YOU"], [Rule("baba", "you")]),
        (["BABA . IS YOU"], []),
        (["YOU IS BABA"], []),
        (["BABA IS . YOU"], []),
        (["baba IS YOU"], []),
        (["BABA", "IS", "YOU"], [Rule("baba", "you")]),
        (["YOU", "IS", "BABA"], []),
        (["BALL IS KEY"], [Rule("ball", "key")]),
        (["BABA IS YOU IS WIN"], [Rule("baba", "you")]),
        (["BABA IS BALL IS WIN"], [Rule("baba", "ball"), Rule("ball", "win")]),
        (["RED BALL IS WIN"], [Rule("ball", "win", "red")]),
        (["RED", "BALL", "IS", "WIN"], [Rule("ball", "win", "red")]),
        (["RED BALL IS RED"], []),
        ([". BALL .", "KEY IS WIN", ". STOP ."], [Rule("key", "win"), Rule("ball", "stop")]),
        (["DOOR IS WIN", YOU], [Rule("door", "win"), Rule("baba", "you")]),
    ],
)
def test_rules_are_read_across_and_down_in_the_order_of_their_is(rows, rules):
    assert list(board(*rows).rules) == rules


@pytest.mark.parametrize(
    ("before", "action", "after", "outcome"),
    [
        # Moving
        ("baba .", "right", ". baba", None),
        ("baba .", "left", "baba .", None),
        ("baba .", "idle", "baba .", None),
        ("baba ball .", "right", ". ball+baba .", None),
        ("baba wall .", "right", ". wall+baba .", None),
        (f"baba wall . {STOPPED}", "right", f"baba wall . {STOPPED}", None),
        ("baba baba .", "right", ". baba baba", None),
        (". baba baba", "left", "baba baba .", None),
        ("baba baba . BABA IS STOP", "right", ". baba baba BABA IS STOP", None),  # they do not bar each other
        (". baba baba BABA IS STOP", "left", "baba baba . BABA IS STOP", None),
        # Pushing
        ("baba KEY .", "right", ". baba KEY", None),
        ("baba KEY IS .", "right", ". baba KEY IS", None),
        (". KEY baba", "right", ". KEY baba", None),
        ("KEY baba .", "left", "KEY baba .", None),
        ("baba KEY wall .", "right", ". baba wall+KEY .", None),
        ("baba wall+KEY .", "right", ". wall+baba KEY", None),
        (f"baba KEY wall {STOPPED}", "right", f"baba KEY wall {STOPPED}", None),
        (f"baba wall+KEY . {STOPPED}", "right", f"baba wall KEY {STOPPED}", None),  # the word goes, the wall bars
        ("baba ball . BALL IS PUSH", "right", ". baba ball BALL IS PUSH", None),
        ("baba ball ball . BALL IS PUSH", "right", ". baba ball ball BALL IS PUSH", None),
        ("baba red:ball+blue:ball . BALL IS PUSH", "right", ". baba red:ball+blue:ball BALL IS PUSH", None),
        ("baba ball BALL IS PUSH", "up", "baba ball BALL IS PUSH", None),
        (". ball baba BALL IS PUSH", "left", "ball baba . BALL IS PUSH", None),
        ("ball baba . BALL IS PUSH", "left", "ball+baba . . BALL IS PUSH", None),  # stuck, but it bars nobody
        # Pulling
        ("ball baba . BALL IS PULL", "right", ". ball baba BALL IS PULL", None),
        ("ball ball baba . BALL IS PULL", "right", ". ball ball baba BALL IS PULL", None),
        ("ball+key baba . BALL IS PULL", "right", "key ball baba BALL IS PULL", None),
        (f"ball baba wall BALL IS PULL . {STOPPED}", "right", f"ball baba wall BALL IS PULL . {STOPPED}", None),
        # Moving by itself
        ("baba . ball . . BALL IS MOVE", "right", ". baba . ball . BALL IS MOVE", None),
        ("baba . ball . . BALL IS MOVE", "idle", "baba . ball . . BALL IS MOVE", None),
        (f". baba . ball wall {STOPPED} . BALL IS MOVE", "left", f"baba . ball . wall {STOPPED} . BALL IS MOVE", None),
        # Opening
        ("baba door . BABA IS OPEN . DOOR IS SHUT", "right", ". . . BABA IS OPEN . DOOR IS SHUT", None),
        ("baba key door KEY IS PUSH . KEY IS OPEN . DOOR IS SHUT", "right", None, None),
        # Winning and losing
        ("baba ball BALL IS WIN", "right", ". ball+baba BALL IS WIN", "win"),
        ("baba . ball BALL IS WIN", "right", ". baba ball BALL IS WIN", None),
        ("ball+baba . BALL IS WIN", "right", "ball baba BALL IS WIN", None),
        ("ball+baba . BALL IS WIN", "idle", "ball+baba . BALL IS WIN", None),
        ("baba ball+key BALL IS WIN", "right", ". ball+key+baba BALL IS WIN", "win"),
        ("baba ball BALL IS LOSE", "right", ". ball+baba BALL IS LOSE", "lose"),
        ("baba ball BALL IS WIN . BALL IS LOSE", "right", ". ball+baba BALL IS WIN . BALL IS LOSE", "win"),
        ("baba . BABA IS WIN", "right", ". baba BABA IS WIN", "win"),
        ("baba . BABA IS WIN", "left", "baba . BABA IS WIN", "win"),
        ("baba ball baba . BALL IS WIN", "right", ". ball+baba . baba BALL IS WIN", "win"),
        ("baba . baba ball BALL IS WIN", "right", ". baba . ball+baba BALL IS WIN", "win"),
        ("baba ball baba key BALL IS WIN . KEY IS LOSE", "right", None, "win"),
        ("baba BALL IS WIN ball .", "right", ". baba BALL IS ball+WIN .", None),
        # Rules of before decide, and those of after turn things into others
        ("baba BALL . IS WIN", "right", ". baba BALL IS WIN", None),
        ("baba ball+BALL . IS WIN . KEY IS WIN", "right", ". ball+baba BALL IS WIN . KEY IS WIN", None),
        ("baba BALL . IS KEY ball", "right", ". baba BALL IS KEY key", None),
        ("baba KEY . IS BALL . BALL IS KEY key ball", "right", ". baba KEY IS BALL . BALL IS KEY ball key", None),
        ("baba red:key . RED KEY IS WIN", "right", ". red:key+baba . RED KEY IS WIN", "win"),
        ("baba blue:key . RED KEY IS WIN", "right", ". blue:key+baba . RED KEY IS WIN", None),
        ("baba blue:key . RED KEY IS WIN . KEY IS WIN", "right", None, "win"),
    ],
)
def test_one_step_of_a_row_in_which_baba_is_you(before, action, after, outcome):
    world, ended = step(board(before, YOU), action)
    assert ended == outcome
    if after is not None:
        assert drawn(world)[0].split() == after.split() + ["."] * (3 - len(after.split()))


def test_a_rule_still_wins_in_the_step_that_breaks_it():
    world, outcome = step(board(". . .", "BALL IS ball+WIN", ". . baba", YOU), "up")
    assert outcome == "win"
    assert drawn(world)[:3] == [". . WIN", "BALL IS ball+baba", ". . ."]


def test_a_key_pushed_into_a_shut_door_takes_the_door_with_it_though_it_is_stop():
    rules = ["KEY IS PUSH . DOOR IS STOP", "KEY IS OPEN . DOOR IS SHUT", YOU]
    once, _ = step(board("baba key door .", *rules), "right")
    assert drawn(once)[0].startswith(". baba . .")
    apart, _ = step(board("baba key . door", *rules), "right")
    assert drawn(apart)[0].startswith(". baba key door")


@pytest.mark.parametrize(
    ("rules", "before", "places"),
    [
        ("BALL IS MOVE . BALL IS PUSH", ". {} {} . .", [2, 3]),
        ("BALL IS YOU . BALL IS PULL", ". {} {} {} .", [2, 3, 4]),
    ],
)
@pytest.mark.parametrize("second", ["red:ball", "blue:ball"])
def test_things_that_are_alike_move_as_others_do(rules, before, places, second):
    world, _ = step(board(before.format("red:ball", second, "red:ball"), f"{rules} . . baba {YOU}"), "right")
    row = drawn(world)[0].split()
    assert [x for x, cell in enumerate(row) for _ in range(cell.count("ball"))] == places


def test_what_moves_by_itself_turns_around_at_an_obstacle_and_keeps_going():
    world = board("ball . .", "baba BALL IS MOVE", YOU)
    places = []
    for action in ["up", "down"] * 3:
        row = drawn(world)[0].split()
        places.append(next(x for x, cell in enumerate(row) if "ball" in cell))
        world, _ = step(world, action)
    assert places == [0, 1, 2, 3, 2, 1]


def test_nothing_depends_on_left_or_right():
    def mirrored(world: World) -> World:
        rows = [world.cells[start : start + world.width][::-1] for start in range(0, len(world.cells), world.width)]
        return World(world.width, tuple(cell for row in rows for cell in row))

    rng = random.Random(0)
    signs = [".", ".", "baba", "ball", "wall", "ball+key", "KEY", "WIN"]
    rules = [
        f"{noun}\nIS\n{what}" for noun, what in (("BABA", "YOU"), ("WALL", "STOP"), ("BALL", "PUSH"), ("KEY", "WIN"))
    ]
    columns = [rule.split("\n") for rule in rules]
    standing = [" ".join(column[k] for column in columns) for k in range(3)]  # read downwards: the same in a mirror
    for _ in range(300):
        world = board(" ".join(rng.choices(signs, k=6)), " ".join(rng.choices(signs, k=6)), *standing)
        there, outcome = step(world, "right")
        back, mirrored_outcome = step(mirrored(world), "left")
        assert mirrored(back).cells == there.cells
        assert mirrored_outcome == outcome


def test_words_and_things_are_never_lost_nor_is_a_word_ever_covered():
    rng = random.Random(1)
    for task in TASKS[::3]:
        world = draw(task, "train", np.random.default_rng(1))
        count = sorted(one for stack in world.cells for one in stack)
        for _ in range(60):
            world, _ = step(world, rng.choice(ACTIONS))
            if any(rule.predicate in NOUNS for rule in world.rules):
                break
            assert sorted(one for stack in world.cells for one in stack) == count
            assert all(one.kind == "object" for stack in world.cells for one in stack[:-1])


# Levels


def test_there_are_the_forty_tasks_of_the_benchmark():
    assert len(set(TASKS)) == 40
    for known in (
        "make_win-distr_obj-irrelevant_rule",
        "two_room-goto_win-distr_win_rule",
        "two_room-maybe_break_stop-goto_win-distr_obj_rule",
        "two_room-break_stop-make_win-distr_rule",
        "two_room-make_you-make_win",
        "two_room-make_wall_win",
    ):
        assert known in TASKS
        assert BabaIsAI(f"env/{known}").task == known


@pytest.mark.parametrize("task", TASKS)
def test_a_level_holds_what_its_task_says(task):
    two = task.startswith("two_room")
    for seed in range(12):
        world = draw(task, "train", np.random.default_rng(seed))
        assert (world.width, len(world.cells)) == ((13, 117) if two else (8, 64))
        active = {f"{rule.noun} is {rule.predicate}" for rule in world.rules}
        present = [one.name for stack in world.cells for one in stack if one.kind == "object" and one.name != "wall"]
        nouns = [one.name for stack in world.cells for one in stack if one.kind == "noun"]
        winners = {rule.noun for rule in world.rules if rule.predicate == "win"}
        assert "baba is you" in active
        stopped = "wall is stop" in active
        assert stopped == (two and ("break_stop" in task or "make_you" in task or "make_wall" in task))
        assert bool(winners & set(present)) == ("make_win" not in task and "make_wall" not in task)
        assert len(present) == 2 + ("-distr_obj" in task or "distr_win_rule" in task or "you" in task or "wall" in task)
        kinds = [name for name in nouns if name not in ("baba", "wall")]
        added = [name for name in kinds if name not in present]
        assert len(kinds) == 1 + ("_rule" in task) + ("make_you" in task) + ("make_wall" in task) + ("win_rule" in task)
        assert len(added) == ("rule" in task and "distr_obj_rule" not in task) + ("make_wall" in task)


@pytest.mark.parametrize(
    ("task", "columns"),
    [
        ("two_room-goto_win", range(1, 5)),
        ("two_room-break_stop-goto_win", range(7, 11)),
        ("two_room-maybe_break_stop-goto_win", [*range(1, 6), *range(7, 12)]),
        ("goto_win", range(1, 7)),
    ],
)
def test_the_target_lies_in_the_room_that_the_task_says(task, columns):
    seen = set()
    for seed in range(150):
        world = draw(task, "train", np.random.default_rng(seed))
        [(spot, _)] = world.find("win")
        seen.add(spot % world.width)
    assert seen == set(columns)


def test_the_added_win_rule_hides_nothing():
    for task in ("two_room-goto_win-distr_win_rule", "two_room-make_win-distr_win_rule"):
        for seed in range(60):
            world = draw(task, "train", np.random.default_rng(seed))
            assert all(len(stack) <= 1 for stack in world.cells)
            assert [rule.predicate for rule in world.rules].count("win") == 1 + ("goto" in task)


def test_all_kinds_win_and_all_colours_occur():
    worlds = [draw("goto_win", "train", np.random.default_rng(seed)) for seed in range(40)]
    winners = [world.find("win")[0][1] for world in worlds]
    assert {one.name for one in winners} == {"ball", "key", "door"}
    assert {one.colour for one in winners} == set(COLOURS)


@pytest.mark.parametrize("task", TASKS[::4])
def test_a_seed_makes_one_level_whatever_came_before(task):
    used = BabaIsAI(task)
    for seed in range(4):
        np.random.seed(seed)
        first, _ = used.reset(seed=7)
        world = used.world
        used.step("left")
        used.reset()
        assert used.world != world
        assert used.reset(seed=7)[0] == first
        assert used.world == world


def test_a_seed_makes_the_same_levels_in_another_process():
    code = (
        "from turnwise.envs.babaisai import *\n"
        "for task in TASKS[::5]:\n"
        "    for split in SPLITS:\n"
        "        env = BabaIsAI(task, split)\n"
        "        print(env.reset(seed=2**62 + 5)[0], env.world.cells, env.expert(), env.thought())\n"
    )
    there = subprocess.check_output([sys.executable, "-c", code], text=True, env={**os.environ, "PYTHONHASHSEED": "1"})
    here = io.StringIO()
    with contextlib.redirect_stdout(here):
        exec(code, {})
    assert here.getvalue() == there
    assert len(there.splitlines()) == 16


def test_no_level_is_in_both_splits_and_colours_make_no_other_level():
    def levels(split: str) -> set[tuple[str, ...]]:
        worlds = [draw("goto_win", split, np.random.default_rng(seed)) for seed in range(400)]
        return {tuple(re.sub(r"\w+:", "", row) for row in drawn(world)) for world in worlds}

    train, test = levels("train"), levels("test")
    assert len(train) > 300
    assert len(test) > 200  # drawn from a fifth of the layouts, so that some come twice
    assert not train & test


# The text


BOARD = (  # as in the paper of the benchmark: eight columns with the border
    "BALL IS WIN . . .",
    "baba . . . . .",
    ". . . . . .",
    ". . . . . .",
    ". . . . . .",
    "BABA IS YOU door . ball",
)


def test_the_balrog_text_of_a_board():
    assert describe(board(*BOARD), "balrog") == (
        "Active rules:\nball is win\nbaba is you\n\nObjects on the map:\n"
        "rule `ball` 1 step up\n"
        "rule `is` 1 step to the right and 1 step up\n"
        "rule `win` 2 steps to the right and 1 step up\n"
        "rule `baba` 4 steps down\n"
        "rule `is` 1 step to the right and 4 steps down\n"
        "rule `you` 2 steps to the right and 4 steps down\n"
        "door 3 steps to the right and 4 steps down\n"
        "ball 5 steps to the right and 4 steps down"
    )


def test_the_clean_text_of_a_board():
    assert describe(board(*BOARD)) == (
        "Active rules:\nball is win\nbaba is you\n\nObjects on the map:\n"
        "word `ball` 1 step up\n"
        "word `is` 1 step right and 1 step up\n"
        "word `win` 2 steps right and 1 step up\n"
        "word `baba` 4 steps down\n"
        "word `is` 1 step right and 4 steps down\n"
        "word `you` 2 steps right and 4 steps down\n"
        "a door 3 steps right and 4 steps down\n"
        "a ball 5 steps right and 4 steps down"
    )


STRANGE = ("BALL IS YOU .", "KEY . ball baba", "IS RED . key+wall", "DOOR . . ball")


def test_the_balrog_style_keeps_the_gaps_of_the_original():
    assert describe(board(*STRANGE), "balrog") == (
        "Active rules:\nball is you\n\nObjects on the map:\n"
        "rule `ball` 2 step to the left and 1 step up\n"
        "rule `is` 1 step to the left and 1 step up\n"
        "rule `you` 1 step up\n"
        "rule `key` 2 step to the left\n"
        "\n"
        "rule `is` 2 step to the left and 1 step down\n"
        "wall 1 step to the right and 1 step down\n"
        "rule `door` 2 step to the left and 2 steps down\n"
        "ball 1 step to the right and 2 steps down"
    )


def test_the_clean_style_tells_what_the_original_leaves_out():
    assert describe(board(*STRANGE)) == (
        "Active rules:\nball is you\nkey is door\n\nObjects on the map:\n"
        "word `ball` 2 steps left and 1 step up\n"
        "word `is` 1 step left and 1 step up\n"
        "word `you` 1 step up\n"
        "word `key` 2 steps left\n"
        "a baba 1 step right\n"
        "word `is` 2 steps left and 1 step down\n"
        "word `red` 1 step left and 1 step down\n"
        "a key 1 step right and 1 step down\n"
        "a wall 1 step right and 1 step down\n"
        "word `door` 2 steps left and 2 steps down\n"
        "a ball 1 step right and 2 steps down"
    )


def test_the_clean_style_tells_what_you_stand_on():
    assert "\na ball here\n" in describe(board("ball+baba .", YOU))


def test_the_world_is_told_from_the_first_of_what_the_last_rule_makes_you():
    two = board("baba . BALL", ". ball IS", "ball . YOU", YOU)
    assert [rule.noun for rule in two.rules] == ["ball", "baba"]
    assert "a ball 1 step right and 1 step down" in describe(two)
    one = board(YOU, "baba . BALL", ". ball IS", "ball . YOU")
    assert [rule.noun for rule in one.rules] == ["baba", "ball"]
    assert "a baba 1 step left and 1 step up\n" in describe(one)
    assert "a ball 1 step left and 1 step down\n" in describe(one)
    gone = board(YOU, "baba . BALL", ". . IS", ". . YOU")
    assert "word `ball` 2 steps right\n" in describe(gone)


def test_instructions_are_the_same_for_every_level_and_name_the_actions():
    shown = {BabaIsAI(task).reset(seed=seed)[0]["instructions"] for task in TASKS[::9] for seed in range(2)}
    assert len(shown) == 1
    brief = shown.pop()
    assert brief.startswith("Actions: idle, up, right, down, left\n")
    assert 'Your goal: reach an object that is "win".' in brief
    full = BabaIsAI(instructions="full").reset(seed=0)[0]["instructions"]
    assert all(action in full for action in ACTIONS)
    assert "{" not in full


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ("up", "move up|go up|north|push up|upwards|move up 2 steps|step up|go north|move one step up"),
        (
            "right",
            "to the right|move right|east|go to the right|1 step to the right|right 3 steps|push word ball right",
        ),
        ("down", "move down|south|walk down|head south|downward|push the word stop down"),
        ("left", "move to the left|west|go west|push left|left one step"),
        ("idle", "wait|stay|do nothing|noop|no-op|no op"),
    ],
)
def test_near_misses_are_translated_and_legal_actions_mean_themselves(action, said):
    env = BabaIsAI()
    for phrase in [action, *said.split("|")]:
        assert env.translate(phrase) == action, phrase


@pytest.mark.parametrize("said", ["", "dance", "go", "push", "upset", "left and up", "win", "stop", "go to the ball"])
def test_other_words_mean_nothing(said):
    assert BabaIsAI().translate(said) is None


# Rewards and ends


@pytest.mark.parametrize("task", TASKS[::13])
def test_the_limit_truncates_without_reward(task):
    env = BabaIsAI(task)
    _, info = env.reset(seed=1)
    for left in reversed(range(LIMIT)):
        assert info["steps_left"] == left + 1
        _, reward, terminated, truncated, info = env.step("idle")
        assert (reward, terminated, truncated) == (0, False, left == 0)
        assert info == {"success": False, "progression": 0, "steps_left": left}


def test_winning_earns_less_the_longer_it_took_and_terminates_even_on_the_last_step():
    for wait, reward in ((0, 1 - 0.009), (49, 0.55), (LIMIT - 1, 0.1)):
        env = staged("baba ball BALL IS WIN", YOU)
        assert not any(any(env.step("idle")[2:4]) for _ in range(wait))
        _, earned, terminated, truncated, info = env.step("right")
        assert earned == pytest.approx(reward)
        assert (terminated, truncated) == (True, False)
        assert info == {"success": True, "progression": 1, "steps_left": LIMIT - 1 - wait}


def test_touching_what_is_lose_ends_the_episode_with_minus_one():
    _, reward, terminated, truncated, info = staged("baba ball BALL IS LOSE", YOU).step("right")
    assert (reward, terminated, truncated, info["success"]) == (-1, True, False, False)


ALONE = (". baba .", "BABA IS YOU")


@pytest.mark.parametrize(
    ("style", "notice"),
    [
        ("clean", "Nothing was you, so the level starts over.\n\n"),
        ("balrog", "[...] IS YOU rule was broken, environment reset\n"),
    ],
)
def test_when_nothing_is_you_the_level_starts_over_and_the_steps_go_on(style, notice):
    env = staged(*ALONE, ". . .", style=style)
    start = env.world
    env.step("left")
    observation, reward, terminated, truncated, info = env.step("down")
    assert env.world == start
    assert observation["text"] == notice + describe(start, style)
    assert (reward, terminated, truncated) == (0, False, False)
    assert info["steps_left"] == LIMIT - 2
    assert not env.step("idle")[0]["text"].startswith(notice)


def test_when_nothing_is_you_the_episode_may_end_instead():
    env = staged(*ALONE, ". . .", on_no_you="terminate")
    observation, reward, terminated, truncated, info = env.step("down")
    assert observation["text"].startswith("Active rules:\n\nObjects on the map:\nnothing is you")
    assert (reward, terminated, truncated, info["success"]) == (0, True, False, False)
    assert env.expert() == "idle"
    assert env.thought() == "I see no way to win from here."


def test_random_play_wins_as_often_as_in_the_original():
    for task, rate in (
        ("goto_win-distr_obj", 0.69),
        ("two_room-goto_win", 0.49),
        ("two_room-goto_win-distr_obj_rule", 0.50),
        ("two_room-maybe_break_stop-goto_win", 0.34),
    ):
        env, rng, wins = BabaIsAI(task), random.Random(0), 0
        for seed in range(25):
            env.reset(seed=seed)
            ended, info = False, {}
            while not ended:
                _, _, terminated, truncated, info = env.step(rng.choice(ACTIONS))
                ended = terminated or truncated
            wins += info["success"]
        assert abs(wins / 25 - rate) < 0.25, task


# The expert


@pytest.mark.parametrize("task", TASKS)
def test_the_expert_always_wins_in_few_steps(task):
    env = BabaIsAI(task)
    for seed in range(2):
        won, actions = play(env, seed)
        assert won
        assert len(actions) <= (10 if "goto" in task and "break" not in task else 20 if "goto" in task else 45)


def test_the_expert_wins_a_level_of_which_it_must_look_at_hundreds_of_worlds():
    env = BabaIsAI("two_room-make_win-distr_win_rule")
    env.reset(seed=292967340644957500)
    assert solve(env.world) is None
    won, actions = play(env, 292967340644957500)
    assert won and len(actions) < 40


def fewest(world: World, most: int) -> int:
    """The length of the shortest way to win, by trying all."""
    seen, queue = {world.cells}, deque([(world, 0)])
    while queue:
        world, steps = queue.popleft()
        for action in ACTIONS[1:] if steps < most else ():
            after, outcome = step(world, action)
            if outcome == "win":
                return steps + 1
            if not outcome and after.cells not in seen:
                seen.add(after.cells)
                queue.append((after, steps + 1))
    return most + 1


def test_a_plan_is_as_short_as_can_be_where_words_need_not_be_moved():
    for task in ("goto_win-distr_obj_rule", "two_room-goto_win-distr_rule"):
        for seed in range(6):
            world = draw(task, "train", np.random.default_rng(seed))
            plan = solve(world)
            assert plan is not None
            assert len(plan) == fewest(world, most=min(len(plan), 7))


def test_the_expert_finds_its_way_back_when_overruled_at_times():
    for task in ("goto_win-distr_rule", "two_room-maybe_break_stop-goto_win", "two_room-make_wall_win"):
        env = BabaIsAI(task)
        assert sum(play(env, seed, noise=0.25)[0] for seed in range(5)) >= 4


def test_several_that_are_you_are_steered_step_by_step():
    env = staged("baba . . . ball", ". . . . .", "wall baba . . .", "BALL IS WIN", YOU, STOPPED)
    won = False
    for _ in range(10):
        won = won or env.step(env.expert())[2]
    assert won


def test_a_plan_wins_with_its_last_action_whatever_the_rules():
    rng, solved = random.Random(3), 0
    for _ in range(60):
        rules = [f"{rng.choice(NOUNS).upper()} IS {rng.choice((*PROPERTIES, *NOUNS)).upper()}" for _ in range(3)]
        things = [" ".join(rng.choices((".", ".", "baba", "ball", "key", "KEY", "BALL"), k=7)) for _ in range(2)]
        env = staged(f"{YOU} . KEY IS WIN", *things, f"{rules[0]} . {rules[1]}", rules[2])
        plan = solve(env.world)
        for turn, _ in enumerate(plan or (), 1):
            assert len(env.thought().split()) <= 24
            _, _, terminated, _, info = env.step(env.expert())
            assert terminated == info["success"] == (turn == len(plan or ()))
        solved += plan is not None
    assert solved >= 20


def test_where_no_way_leads_to_a_win_the_expert_idles_and_says_so():
    for rows in (
        ("baba . ball BALL IS", YOU),
        ("baba wall ball BALL IS WIN", ". wall . WALL IS STOP", YOU + " . ." * 2),
    ):
        env = staged(*rows)
        assert env.expert() == "idle"
        assert env.thought() == "I see no way to win from here."


def test_watching_the_expert_does_not_change_the_episode():
    alone, watched, rng = BabaIsAI("make_win"), BabaIsAI("make_win"), random.Random(4)
    alone.reset(seed=4)
    watched.reset(seed=4)
    for _ in range(10):
        action = rng.choice(ACTIONS)
        assert watched.expert() in ACTIONS
        watched.thought()
        assert alone.step(action) == watched.step(action)


@pytest.mark.parametrize("task", [task for task in TASKS if "-distr" not in task])
def test_a_thought_says_where_the_next_thing_is_and_what_comes_of_it(task):
    env = BabaIsAI(task)
    for seed in range(2):
        text = env.reset(seed=seed)[0]["text"]
        ended, promised = False, None
        while not ended:
            action, thought, before = env.expert(), env.thought(), set(env.world.rules)
            assert len(thought.split()) <= 24
            told = re.fullmatch(
                r"(?:To (make|break) (.+): (.+)\. I push it (\w+)"
                r"|(\w+) is win\. I see (.+?)(?:\. I step off it and back)?)\.",
                thought,
            )
            assert told is not None, thought
            verb, rule, pushed, way, target, seen = told.groups()
            assert (pushed or seen) in text.splitlines()
            if target:
                assert f"{target} is win" in text.splitlines() and seen.startswith(f"a {target} ")
            promised = promised or (verb, rule)
            observation, _, ended, _, _ = env.step(action)
            text, after = observation["text"], set(env.world.rules)
            if pushed and re.fullmatch(rf"\D+ 1 step {way}", pushed):
                assert action == way
            if after != before:  # the first change since is the promised one
                changed = after - before if promised[0] == "make" else before - after
                assert promised[1] in {f"{one.noun} is {one.predicate}" for one in changed}
                promised = None


# The picture and the interface


def test_the_picture_shows_each_cell_as_a_tile_and_changes_with_the_world():
    env = BabaIsAI("two_room-make_win")
    env.reset(seed=0)
    first = env.render()
    assert (first.shape, first.dtype) == ((9 * 32, 13 * 32, 3), np.uint8)
    env.step(env.expert())
    second = env.render()
    tiles = (first != second).reshape(9, 32, 13, 32, 3).any((1, 3, 4))
    assert 2 <= tiles.sum() <= 4


def test_every_thing_looks_different():
    names = [*NOUNS, *(f"{colour}:key" for colour in COLOURS), *(name.upper() for name in (*NOUNS, "is", "you", "win"))]
    pictures = set()
    for name in names:
        env = staged(name, YOU)
        pictures.add(env.render()[32:64, 32:64].tobytes())
    assert len(pictures) == len(names)


@pytest.mark.parametrize("instructions", ["brief", "full"])
def test_gymnasium_finds_no_fault(instructions):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(BabaIsAI("two_room-make_you", instructions=instructions), skip_render_check=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": "goto_wins"}, r"task is 'goto_wins' \(did you mean 'goto_win'\?\), but must be one of: goto_win, "),
        ({"task": "env/two_room-make_yu"}, "did you mean 'two_room-make_you'"),
        ({"task": 3}, "task is '3', but must be one of: goto_win"),
        ({"split": "tests"}, r"split is 'tests' \(did you mean 'test'\?\), but must be one of: train, test"),
        ({"style": "plain"}, "style is 'plain'.*, but must be one of: clean, balrog"),
        ({"instructions": "long"}, "instructions is 'long', but must be one of: brief, full"),
        ({"on_no_you": "reset"}, r"on_no_you is 'reset'.*, but must be one of: restart, terminate"),
    ],
)
def test_a_wrong_argument_is_named_with_what_is_allowed(arguments, message):
    with pytest.raises(ValueError, match=message):
        BabaIsAI(**arguments)


def test_an_illegal_action_is_refused_and_costs_no_step():
    env = BabaIsAI()
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"action is 'rigth' \(did you mean 'right'\?\)"):
        env.step("rigth")
    assert env.steps_left == LIMIT
