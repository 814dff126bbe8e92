"""NetHack: dungeons by seed, keys in words, ends, and what is shown."""

import re

import pytest
from gymnasium.utils.env_checker import check_env

from turnwise.envs.nle import NLE

pytest.importorskip("nle")


def play(seed: int, actions: list[str], **arguments) -> list:
    env = NLE(**arguments)
    seen = [env.reset(seed=seed)[0], *(env.step(action) for action in actions)]
    env.close()
    return seen


def random_actions(env: NLE, count: int) -> list[str]:
    env.action_space.seed(0)
    return [env.action_space.sample() for _ in range(count)]


def test_it_is_a_gymnasium_environment():
    check_env(NLE(), skip_render_check=True)


def test_a_game_is_a_function_of_the_seed_and_the_actions():
    actions = random_actions(NLE(), 300)
    assert play(1, actions) == play(1, actions)


def test_different_seeds_give_different_dungeons_and_heroes():
    firsts = [play(seed, [])[0] for seed in range(5)]
    assert len({first["cue"] for first in firsts}) == 5
    assert len({first["text"] for first in firsts}) == 5


def test_one_environment_gives_a_level_again():
    env = NLE()
    levels = [env.reset(seed=seed)[0] for seed in (3, 4, 3)]
    assert levels[0] == levels[2] != levels[1]


def test_message_status_map_and_inventory_are_shown():
    first = play(1, [], character="val-dwa-fem-law")[0]
    assert "welcome to NetHack" in first["text"]
    assert re.search(r"Dlvl:1 .* HP:\d+", first["text"])
    assert first["cue"].startswith("Map:\n")
    assert "@" in first["cue"]
    assert re.search(r"You carry:\na: .*long sword", first["cue"])
    assert "far north" in first["instructions"]


def test_ways_are_those_of_the_map():
    def place(cue: str) -> tuple[int, int]:
        rows = cue.partition("\nYou carry:")[0].splitlines()
        return next((i, row.index("@")) for i, row in enumerate(rows) if "@" in row)

    moved = 0
    for seed in range(8):
        for way, change in (("north", (-1, 0)), ("east", (0, 1)), ("south", (1, 0)), ("west", (0, -1))):
            before, (after, *_) = play(seed, [way], character="val-dwa-fem-law")
            old, new = place(before["cue"]), place(after["cue"])
            assert (new[0] - old[0], new[1] - old[1]) in (change, (0, 0))
            moved += new != old
    assert moved > 8


def test_a_question_is_answered_by_a_letter():
    _, asked, answered = play(1, ["drop", "a"], character="val-dwa-fem-law")
    assert "What do you want to drop?" in asked[0]["text"]
    assert "You drop" in answered[0]["text"]
    assert "\na: " in asked[0]["cue"]
    assert "\na: " not in answered[0]["cue"]


def test_a_limit_of_turns_truncates_and_death_terminates():
    seen = play(1, ["search"] * 3, max_turns=3)
    assert [turn[2:4] for turn in seen[1:]] == [(False, False), (False, False), (False, True)]
    env = NLE(character="arc-hum-neu-mal", max_turns=None)
    for seed in range(20):  # to pray again and again angers the gods
        env.reset(seed=seed)
        for turn in range(400):
            _, _, terminated, truncated, info = env.step(("pray", "y")[turn % 2])
            assert not truncated
            if terminated:
                assert info == {"success": False}
                return
    pytest.fail("nobody died")


def test_a_mistake_is_one_sentence():
    with pytest.raises(ValueError, match="max_turns is 0"):
        NLE(max_turns=0)
