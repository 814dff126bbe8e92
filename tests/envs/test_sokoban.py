"""Sokoban: boards laid by hand, levels solved again by a slower search, expert, ends, pictures and wording."""

import os
import random
import subprocess
import sys
import warnings

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from turnwise.envs.sokoban import Level, SokobanText, draw_floor, layers, solve

KINDS = [
    {},
    {"size": 7, "min_moves": 6, "max_moves": 12, "length": 40},
    {"size": 6, "boxes": 2, "min_moves": 3, "max_moves": 9},
]
ROOM = """
# # # # # #
# _ _ _ O #
# _ X _ _ #
# P _ _ _ #
# # # # # #
"""


def staged(board: str, **arguments) -> SokobanText:
    """An environment with a level laid out by hand."""
    env = SokobanText(**arguments)
    env.reset(seed=0)
    env.level = Level.read(board)
    return env


def play(board: str, actions: str) -> tuple[str, list[float], bool]:
    """The board after a word of moves such as "UR", the rewards, and whether it terminated."""
    env = staged(board)
    words = {action[0]: action for action in env.actions}
    text, rewards, terminated = "", [], False
    for letter in actions:
        observation, reward, terminated, _, _ = env.step(words[letter])
        text = observation["text"]
        rewards.append(round(reward, 9))
    return text, rewards, terminated


def slow_shortest(board: str, most: int) -> int | None:
    """The length of a shortest solution up to `most`, on the signs alone and in layers of whole boards."""

    def push(rows: list[list[str]], down: int, right: int) -> None:
        free, enter, leave = {"_": "P", "O": "S"}, {"X": "P", "V": "S"}, {"P": "_", "S": "O"}
        box = {"_": "X", "O": "V"}
        i, j = next((i, j) for i, row in enumerate(rows) for j, sign in enumerate(row) if sign in "PS")
        ahead = rows[i + down][j + right]
        if ahead in enter and rows[i + 2 * down][j + 2 * right] in box:
            rows[i + 2 * down][j + 2 * right] = box[rows[i + 2 * down][j + 2 * right]]
            rows[i + down][j + right] = enter[ahead]
        elif ahead in free:
            rows[i + down][j + right] = free[ahead]
        else:
            return
        rows[i][j] = leave[rows[i][j]]

    seen = boards = {board}
    for moves in range(most + 1):
        if any("X" not in one for one in boards):
            return moves
        following = set()
        for one in boards:
            for way in ((-1, 0), (1, 0), (0, -1), (0, 1)):
                rows = [line.split() for line in one.splitlines()]
                push(rows, *way)
                following.add("\n".join(" ".join(row) for row in rows))
        boards = following - seen
        seen = seen | boards
    return None


# The rules


def test_a_push_moves_player_and_box_and_targets_show_through():
    text, rewards, terminated = play(ROOM, "UR")
    assert text == "# # # # # #\n# _ _ _ O #\n# _ P X _ #\n# _ _ _ _ #\n# # # # # #"
    assert (rewards, terminated) == ([-0.1, -0.1], False)
    text, rewards, terminated = play(ROOM, "URRDRU")
    assert text == "# # # # # #\n# _ _ _ V #\n# _ _ _ P #\n# _ _ _ _ #\n# # # # # #"
    assert (rewards, terminated) == ([-0.1] * 5 + [10.9], True)


def test_the_player_stands_on_a_target_and_leaves_it_as_it_was():
    board = "# # # # #\n# P O X #\n# _ _ _ #\n# # # # #"
    assert play(board, "R")[0] == "# # # # #\n# _ S X #\n# _ _ _ #\n# # # # #"
    assert play(board, "RD")[0] == "# # # # #\n# _ O X #\n# _ P _ #\n# # # # #"


@pytest.mark.parametrize(
    ("board", "action"),
    [
        ("# # # #\n# P O #\n# X _ #\n# # # #", "U"),  # a wall
        ("# # # #\n# P O #\n# X _ #\n# # # #", "D"),  # a box at a wall
        ("# # # # # # #\n# P X X _ O #\n# _ _ _ _ O #\n# # # # # # #", "R"),  # two boxes
        ("# # # # # # #\n# P X V _ O #\n# # # # # # #", "R"),
    ],
)
def test_what_is_blocked_stays_and_costs_a_move(board, action):
    env = staged(board)
    before = env._info()["steps_left"]
    observation, reward, _, _, info = env.step({"U": "Up", "D": "Down", "R": "Right"}[action])
    assert observation["text"] == board
    assert (reward, info["steps_left"]) == (-0.1, before - 1)


def test_a_box_is_never_pulled():
    assert play("# # # # #\n# _ P X #\n# O _ _ #\n# # # # #", "L")[0] == "# # # # #\n# P _ X #\n# O _ _ #\n# # # # #"


def test_a_box_pushed_off_its_target_takes_its_reward_back():
    board = "# # # # # #\n# P V _ _ #\n# _ X O _ #\n# # # # # #"
    assert play(board, "R")[1] == [-1.1]


def test_a_board_reads_as_it_is_shown():
    boards = [ROOM.strip(), "# # # # #\n# S X V #\n# O X _ #\n# # # # #"]
    assert [str(Level.read(board)) for board in boards] == boards


# Levels


@pytest.mark.parametrize("kind", KINDS)
def test_every_level_is_solved_in_a_number_of_moves_within_the_range(kind):
    env, lengths = SokobanText(**kind), set()
    for seed in range(60):
        observation, _ = env.reset(seed=seed)
        solution = solve(env.level)
        assert solution is not None
        assert env.min_moves <= len(solution) <= env.max_moves
        lengths.add(len(solution))
        if seed < 15:
            assert slow_shortest(observation["text"], env.max_moves) == len(solution)
    assert len(lengths) >= 0.8 * (env.max_moves - env.min_moves + 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_level_has_walls_around_connected_floor_and_as_many_targets_as_boxes(kind):
    env = SokobanText(**kind)
    for seed in range(40):
        level = env._draw(np.random.default_rng(seed))
        assert len(level.boxes) == len(level.targets) == env.boxes
        assert level.player not in level.boxes
        assert level.targets | level.boxes | {level.player} <= level.floor
        assert all(0 < i < env.size - 1 and 0 < j < env.size - 1 for i, j in level.floor)
        reached, frontier = set(), [level.player]
        while frontier:
            i, j = cell = frontier.pop()
            if cell in level.floor and cell not in reached:
                reached.add(cell)
                frontier += [(i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)]
        assert reached == level.floor
        assert len(level.floor) == -(-3 * (env.size - 2) ** 2 // 4)


def test_playing_backwards_finds_all_and_only_the_states_that_can_be_solved_with_their_distance():
    floor = draw_floor(np.random.default_rng(3), 5)
    for targets in (frozenset([min(floor)]), frozenset(sorted(floor)[1:3])):
        found = {state: moves for moves, layer in enumerate(layers(floor, targets, 99)) for state in layer}
        places = [frozenset([a, b][: len(targets)]) for a in floor for b in floor if a < b or len(targets) == 1]
        for boxes in {place for place in places if len(place) == len(targets)}:
            for player in floor - boxes:
                solution = solve(Level((5, 5), floor, targets, boxes, player))
                assert found.get((player, boxes)) == (None if solution is None else len(solution))


def test_a_seed_makes_one_level_whoever_draws_it_and_whatever_came_before():
    for kind in KINDS:
        used = SokobanText(**kind)
        for seed in range(10):
            fresh = SokobanText(**kind)
            assert used.reset(seed=seed) == fresh.reset(seed=seed)
            used.step(used.expert())
    assert len({str(SokobanText()._draw(np.random.default_rng(seed))) for seed in range(20)}) > 15


def test_a_seed_makes_the_same_levels_in_another_process():
    code = (
        "from turnwise.envs.sokoban import *\n"
        "env = SokobanText(boxes=2, max_moves=9)\n"
        "for seed in (3, 2**63 + 5):\n"
        "    print(env.reset(seed=seed), solve(env.level))\n"
    )
    others = [
        subprocess.check_output([sys.executable, "-c", code], text=True, env={**os.environ, "PYTHONHASHSEED": salt})
        for salt in "12"
    ]
    assert others[0] == others[1]
    assert len(others[0].splitlines()) == 2


# The expert


@pytest.mark.parametrize("kind", KINDS)
def test_the_expert_plays_a_shortest_solution_also_after_random_moves(kind):
    env = SokobanText(**kind | {"length": 40})
    rng = random.Random(1)
    for seed in range(15):
        env.reset(seed=seed)
        for _ in range(seed % 3):
            env.expert()  # its plan is laid, and then crossed
            env.step(rng.choice(env.actions))
        best = solve(env.level)
        moves, ended = 0, not best
        while not ended:
            _, _, terminated, truncated, _ = env.step(env.expert())
            moves, ended = moves + 1, terminated or truncated
        assert moves == len(best or [])


def test_what_cannot_be_solved_is_known_and_still_gets_a_legal_move():
    board = "# # # # #\n# X _ O #\n# _ P _ #\n# # # # #"
    assert solve(Level.read(board)) is None
    env = staged(board)
    for _ in range(3):
        assert env.expert() in env.actions
        env.step(env.expert())
    env.reset(seed=1)
    assert [env.expert()] == (solve(env.level) or [])[:1]


def test_watching_the_expert_does_not_change_the_episode():
    alone, watched = SokobanText(), SokobanText()
    assert alone.reset(seed=4) == watched.reset(seed=4)
    rng = random.Random(4)
    for _ in range(10):
        action = rng.choice(alone.actions)
        watched.expert()
        watched.thought()
        watched.render()
        assert alone.step(action) == watched.step(action)


def test_a_thought_tells_the_nearest_box_and_its_nearest_target():
    assert (
        staged(ROOM).thought()
        == "A box is 1 step up and 1 step right. From it, a target is 1 step up and 2 steps right."
    )
    two = "# # # # # # #\n# P V X _ O #\n# X _ _ _ O #\n# # # # # # #"
    assert staged(two).thought() == "A box is 1 step down. From it, a target is 4 steps right."
    assert staged("# # # #\n# P V #\n# # # #").thought() == "Every box is on a target."


# Ends


def test_the_limit_truncates():
    env = SokobanText(size=5, max_moves=4, length=4)
    env.reset(seed=1)
    wall = next(action for action in env.actions if env.level.after(action) == env.level)
    ends = [env.step(wall) for _ in range(4)]
    assert [end[2:4] for end in ends] == [(False, False)] * 3 + [(False, True)]
    assert ends[-1][4] == {"success": False, "steps_left": 0}


def test_success_on_the_last_step_is_terminated():
    env = SokobanText(min_moves=4, max_moves=4, length=4)
    for seed in range(5):
        env.reset(seed=seed)
        ends = [env.step(env.expert()) for _ in range(4)]
        assert [end[2:4] for end in ends] == [(False, False)] * 3 + [(True, False)]
        assert ends[-1][4] == {"success": True, "steps_left": 0}


# Words and pictures


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ("Up", "up|go up|move up|upwards|move north|push up|step up one cell"),
        ("Down", "down|go down|move down|push the box down|south|move down 1 step"),
        ("Left", "left|go left|move to the left|push box left|push the box to the left"),
        ("Right", "right|walk right|to the right|move right one step|east"),
    ],
)
def test_near_misses_are_translated(action, said):
    known = {phrase: SokobanText().translate(phrase) for phrase in said.split("|")}
    assert set(known.values()) == {action}, known


@pytest.mark.parametrize("said", ["", "jump", "left right", "up, up", "pull left", "upper", "move", "move 1"])
def test_other_words_mean_nothing(said):
    assert SokobanText().translate(said) is None


def test_a_picture_shows_each_sign_in_its_own_look():
    env = staged("# # # #\n# P V #\n# X O #\n# _ _ #\n# # # #")
    image = env.render()
    assert (image.shape, image.dtype) == ((80, 64, 3), np.uint8)
    tiles = {}
    for i, row in enumerate(str(env.level).splitlines()):
        for j, sign in enumerate(row.split()):
            tiles.setdefault(sign, set()).add(image[16 * i : 16 * i + 16, 16 * j : 16 * j + 16].tobytes())
    assert all(len(looks) == 1 for looks in tiles.values())
    assert len(set.union(*tiles.values())) == len(tiles) == 6
    before = image.copy()
    env.step("Down")
    assert (before != env.render()).any()


@pytest.mark.parametrize("instructions", ["brief", "full"])
def test_instructions_are_the_same_for_every_level_and_gymnasium_finds_no_fault(instructions):
    env = SokobanText(instructions=instructions)
    assert len({env.reset(seed=seed)[0]["instructions"] for seed in range(5)}) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env, skip_render_check=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 4}, "size is 4, but must be a whole number from 5 to 10"),
        ({"size": "6"}, "size is '6', but must be"),
        ({"boxes": 0}, "boxes is 0, but must be a whole number from 1 to 3"),
        ({"min_moves": 6}, "min_moves, max_moves and length are 6, 5 and 15, but must be at least 1 and in this order"),
        ({"min_moves": 0}, "min_moves, max_moves and length are 0, 5 and 15, but"),
        ({"max_moves": 20}, "min_moves, max_moves and length are 1, 20 and 15, but"),
        ({"size": 5, "min_moves": 40, "max_moves": 40, "length": 40}, "rooms of size=5 with boxes=1 has a shortest"),
        ({"instructions": "long"}, "instructions is 'long', but must be one of: brief, full"),
    ],
)
def test_a_wrong_argument_is_named_with_what_is_allowed(arguments, message):
    with pytest.raises(ValueError, match=message):
        SokobanText(**arguments)


def test_an_illegal_action_is_refused_and_costs_no_move():
    env = SokobanText()
    _, info = env.reset(seed=0)
    with pytest.raises(ValueError, match=r"action is 'Upp' \(did you mean 'Up'\?\)"):
        env.step("Upp")
    assert env._info() == info
