"""FrozenLake: lakes laid by hand, ways and chances found again by brute force, expert, ends, pictures and wording."""

import functools
import os
import random
import subprocess
import sys
import warnings

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from turnwise.envs.frozenlake import FrozenLakeText, Lake, distance

KINDS = [{}, {"size": 8, "holes": 0.3}, {"size": 3, "length": 3}, {"slip": 0.3}]
LAKE = "P _ O\n_ O _\n_ _ G"


def staged(board: str, **arguments) -> FrozenLakeText:
    """An environment with a lake laid out by hand."""
    env = FrozenLakeText(**arguments)
    env.reset(seed=0)
    env.lake = Lake.read(board)
    return env


def went(lake: Lake, i: int, j: int, action: str) -> tuple[int, int]:
    """Where a move ends, from the rules alone."""
    if action in ("Up", "Down"):
        return min(max(i + (1 if action == "Down" else -1), 0), lake.size[0] - 1), j
    return i, min(max(j + (1 if action == "Right" else -1), 0), lake.size[1] - 1)


def best_chance(lake: Lake, slip: float, moves: int) -> float:
    """The best chance to reach the goal in so many moves, over all that may happen."""
    sides = {"Left": ("Up", "Down"), "Right": ("Up", "Down"), "Up": ("Left", "Right"), "Down": ("Left", "Right")}

    @functools.cache
    def chance(cell: tuple[int, int], left: int) -> float:
        if cell == lake.goal or cell in lake.holes or not left:
            return float(cell == lake.goal)
        return max(
            (1 - slip) * chance(went(lake, *cell, action), left - 1)
            + sum(slip / 2 * chance(went(lake, *cell, side), left - 1) for side in sides[action])
            for action in sides
        )

    return chance(lake.player, moves)


# The rules


def test_moves_go_one_cell_stay_at_the_border_and_keep_the_ice_as_it_was():
    env = staged(LAKE)
    for action, board in (
        ("Up", LAKE),
        ("Left", LAKE),
        ("Right", "_ P O\n_ O _\n_ _ G"),
        ("Left", LAKE),
        ("Down", "_ _ O\nP O _\n_ _ G"),
        ("Down", "_ _ O\n_ O _\nP _ G"),
        ("Down", "_ _ O\n_ O _\nP _ G"),
        ("Right", "_ _ O\n_ O _\n_ P G"),
    ):
        observation, reward, terminated, truncated, info = env.step(action)
        assert observation["text"] == board
        assert (reward, terminated, truncated, info["success"]) == (0, False, False, False)
    observation, reward, terminated, truncated, info = env.step("Right")
    assert observation["text"] == "_ _ O\n_ O _\n_ _ V"
    assert (reward, terminated, truncated, info["success"]) == (1, True, False, True)


def test_a_hole_ends_it_without_reward():
    env = staged(LAKE)
    env.step("Right")
    observation, reward, terminated, truncated, info = env.step("Right")
    assert observation["text"] == "_ _ X\n_ O _\n_ _ G"
    assert (reward, terminated, truncated, info["success"]) == (0, True, False, False)


def test_a_lake_reads_as_it_is_shown():
    for board in (LAKE, "X _\nG O", "_ V\nO _", "P G"):
        assert str(Lake.read(board)) == board


def test_a_slip_leads_to_either_side_as_often_as_it_should_and_never_back():
    env = FrozenLakeText(slip=0.3)
    env.reset(seed=7)
    counts: dict[tuple[int, int], int] = {}
    for _ in range(3000):
        env.lake = Lake.read("_ _ _ _\n_ P _ _\n_ _ _ G")
        env.step("Right")
        counts[env.lake.player] = counts.get(env.lake.player, 0) + 1
    assert set(counts) == {(1, 2), (0, 1), (2, 1)}
    assert counts[1, 2] == pytest.approx(2100, abs=100)  # four standard deviations
    assert counts[0, 1] == pytest.approx(450, abs=80)


def test_without_slip_the_ice_is_not_slippery():
    env = staged("_ _ _\n_ P _\n_ _ G")
    for _ in range(50):
        env.lake = Lake.read("_ _ _\n_ P _\n_ _ G")
        env.step("Up")
        assert env.lake.player == (0, 1)


# Lakes


@pytest.mark.parametrize("kind", KINDS)
def test_every_lake_has_a_way_within_the_limit(kind):
    env = FrozenLakeText(**kind)
    for seed in range(60):
        env.reset(seed=seed)
        lake = env.lake
        assert lake.size == (env.size, env.size)
        assert lake.player != lake.goal
        assert not {lake.player, lake.goal} & lake.holes
        assert 1 <= distance(lake) <= env.length


def test_distances_are_those_of_all_ways_tried():
    env = FrozenLakeText(size=3, holes=0.4)
    for seed in range(40):
        env.reset(seed=seed)
        for player in ((i, j) for i in range(3) for j in range(3)):
            if player not in env.lake.holes:
                lake = Lake((3, 3), env.lake.holes, env.lake.goal, player)
                tried = next((k for k in range(9) if best_chance(lake, 0, k) == 1), float("inf"))
                assert distance(lake) == tried


def test_holes_are_as_frequent_as_asked():
    counts = []
    for seed in range(300):
        env = FrozenLakeText(holes=0.2)
        env.reset(seed=seed)
        counts.append(len(env.lake.holes))
    assert np.mean(counts) == pytest.approx(0.2 * 14, abs=0.35)  # four standard errors; start and goal never melt
    assert min(counts) == 0


def test_a_seed_makes_one_lake_and_one_fate_whoever_draws_it_and_whatever_came_before():
    for kind in KINDS:
        used = FrozenLakeText(**kind)
        for seed in range(10):
            fresh = FrozenLakeText(**kind)
            assert used.reset(seed=seed) == fresh.reset(seed=seed)
            for action in ("Left", "Down", "Right") * 3:
                assert used.step(action) == fresh.step(action)
    assert len({FrozenLakeText().reset(seed=seed)[0]["text"] for seed in range(20)}) > 15


def test_a_seed_makes_the_same_episodes_in_another_process():
    code = (
        "from turnwise.envs.frozenlake import *\n"
        "env = FrozenLakeText(slip=0.3)\n"
        "for seed in (3, 2**63 + 5):\n"
        "    print(env.reset(seed=seed), [env.step(env.expert()) for _ in range(5)])\n"
    )
    others = [
        subprocess.check_output([sys.executable, "-c", code], text=True, env={**os.environ, "PYTHONHASHSEED": salt})
        for salt in "12"
    ]
    assert others[0] == others[1]
    assert len(others[0].splitlines()) == 2


# The expert


@pytest.mark.parametrize("kind", [{}, {"size": 8, "holes": 0.3}])
def test_the_expert_takes_a_shortest_way_also_after_random_moves(kind):
    env, rng = FrozenLakeText(**kind | {"length": 99}), random.Random(3)
    for seed in range(40):
        env.reset(seed=seed)
        for _ in range(seed % 4):
            env.step(rng.choice([action for action in env.actions if not env.lake.after(action).drowned]))
        if env.lake.crossed:
            continue
        best, moves, ended, info = distance(env.lake), 0, False, {}
        while not ended:
            _, _, terminated, truncated, info = env.step(env.expert())
            moves, ended = moves + 1, terminated or truncated
        assert info["success"]
        assert moves == best


@pytest.mark.parametrize("slip", [0.0, 0.3, 2 / 3, 1.0])
def test_on_slippery_ice_the_experts_move_has_the_best_chance_there_is(slip):
    env = FrozenLakeText(size=3, holes=0.3, slip=slip, length=6)
    for seed in range(15):
        env.reset(seed=seed)
        for left in range(6, 0, -1):
            best = best_chance(env.lake, slip, left)
            index = env.actions.index(env.expert())
            assert env._chances is not None
            assert env._chances[left, index, *env.lake.player] == pytest.approx(best, abs=1e-12)
            _, _, terminated, _, _ = env.step(env.expert())
            if terminated:
                break


def test_the_expert_prefers_to_be_there_sooner():
    env = staged("P _ _\n_ O _\n_ _ G\n_ _ _", length=25)
    assert env.expert() in ("Right", "Down")
    env = staged("_ _ _\nP _ G\n_ _ _", length=25)
    assert env.expert() == "Right"


def test_the_expert_gives_danger_a_wide_berth():
    """Along the upper row a slip is fatal: walking into the border is safer than walking past the holes."""
    env = staged("P _ _ _ G\nO O O O O", slip=0.2, length=60)
    assert env.expert() == "Up"
    env = staged("P _ _ _ G\nO O O O O", slip=0.0, length=60)
    assert env.expert() == "Right"


def test_watching_the_expert_does_not_change_the_episode():
    alone, watched = FrozenLakeText(slip=0.5), FrozenLakeText(slip=0.5)
    assert alone.reset(seed=4) == watched.reset(seed=4)
    rng = random.Random(4)
    for _ in range(10):
        action = rng.choice(alone.actions)
        watched.expert()
        watched.thought()
        watched.render()
        assert alone.step(action) == watched.step(action)


def test_a_thought_tells_where_the_goal_is_and_which_neighbours_are_holes():
    assert staged(LAKE).thought() == "The goal is 2 steps down and 2 steps right. Holes beside me: none."
    assert (
        staged("_ P O\n_ O _\nG _ _").thought()
        == "The goal is 2 steps down and 1 step left. Holes beside me: down, right."
    )
    assert staged("_ V O").thought() == "I am at the goal."


# Ends


def test_the_limit_truncates():
    env = staged("P _ G", length=3)
    ends = [env.step("Left") for _ in range(3)]
    assert [end[1:4] for end in ends] == [(0, False, False)] * 2 + [(0, False, True)]
    assert ends[-1][4] == {"success": False, "steps_left": 0}


@pytest.mark.parametrize(("board", "success"), [("P _ G", True), ("P _ O G", False)])
def test_an_end_on_the_last_step_is_terminated(board, success):
    env = staged(board, length=2)
    env.step("Right")
    _, reward, terminated, truncated, info = env.step("Right")
    assert (reward, terminated, truncated) == (float(success), True, False)
    assert info == {"success": success, "steps_left": 0}


# Words and pictures


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ("Up", "up|go up|move up|upwards|move north|step up one cell"),
        ("Down", "down|go down|slide down|south|move down 1 step"),
        ("Left", "left|go left|move to the left|to the left|west"),
        ("Right", "right|walk right|move right one step|east"),
    ],
)
def test_near_misses_are_translated(action, said):
    known = {phrase: FrozenLakeText().translate(phrase) for phrase in said.split("|")}
    assert set(known.values()) == {action}, known


@pytest.mark.parametrize("said", ["", "jump", "left right", "down, down", "upper", "move", "move 1"])
def test_other_words_mean_nothing(said):
    assert FrozenLakeText().translate(said) is None


def test_a_picture_shows_each_sign_in_its_own_look():
    looks = {}
    for board in ("P _\nO G", "_ V\nO _", "_ G\nX _"):
        env = staged(board)
        image = env.render()
        assert (image.shape, image.dtype) == ((128, 128, 3), np.uint8)
        for i, row in enumerate(board.splitlines()):
            for j, sign in enumerate(row.split()):
                looks.setdefault(sign, set()).add(image[64 * i : 64 * i + 64, 64 * j : 64 * j + 64].tobytes())
    assert all(len(tiles) == 1 for tiles in looks.values())
    assert len(set.union(*looks.values())) == len(looks) == 6


@pytest.mark.parametrize("kind", [{}, {"instructions": "full"}, {"slip": 0.25}, {"slip": 0.25, "instructions": "full"}])
def test_instructions_are_the_same_for_every_lake_and_gymnasium_finds_no_fault(kind):
    env = FrozenLakeText(**kind)
    (text,) = {env.reset(seed=seed)[0]["instructions"] for seed in range(5)}
    assert ("probability 0.25" in text) == ("slip" in kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env, skip_render_check=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 1}, "size is 1, but must be a whole number from 2 to 16"),
        ({"holes": 0.6}, "holes is 0.6, but must be a share of the cells from 0 to 0.5"),
        ({"slip": 1.5}, "slip is 1.5, but must be a probability from 0 to 1"),
        ({"length": 0}, "length is 0, but must be a whole number of moves, at least 1"),
        ({"length": "long"}, "length is 'long', but must be"),
        ({"instructions": "long"}, "instructions is 'long', but must be one of: brief, full"),
    ],
)
def test_a_wrong_argument_is_named_with_what_is_allowed(arguments, message):
    with pytest.raises(ValueError, match=message):
        FrozenLakeText(**arguments)


def test_an_illegal_action_is_refused_and_costs_no_move():
    env = FrozenLakeText()
    _, info = env.reset(seed=0)
    with pytest.raises(ValueError, match=r"action is 'Upp' \(did you mean 'Up'\?\)"):
        env.step("Upp")
    assert env._info() == info
