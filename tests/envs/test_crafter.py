"""Crafter as text: worlds against the original's, boards laid by hand, ends, sleep, the script and wording."""

import functools
import math
import random
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from turnwise.envs.crafter import DIRECTIONS, WINDOW, CrafterText
from turnwise.envs.crafter_world import draw_world, noise

crafter = pytest.importorskip("crafter")

STATE = "(env.game._world._mat_map.sum(), [(type(o).__name__, *map(int, o.pos)) for o in env.game._world.objects])"


def staged(monkeypatch, things=None, ground="sand", place=(32, 32), **arguments) -> CrafterText:
    """A world of nothing but `ground` and these things, by offset from the player. On sand nobody ever appears."""
    size = (64, 64)
    flat = lambda *_: (np.full(size, ground), np.full(size, ""))  # noqa: E731
    monkeypatch.setattr("turnwise.envs.crafter_game.draw_world", flat)
    env = CrafterText(**arguments)
    env.reset(seed=0)
    world, player = env.game._world, env.game.player
    if place != (32, 32):
        world.move(player, place)
    for (x, y), thing in (things or {}).items():
        spot = (place[0] + x, place[1] + y)
        if thing in crafter.constants.materials:
            world[spot] = thing
        else:
            known = () if thing in ("cow", "plant") else (player,)
            known = ((1, 0),) if thing == "arrow" else known
            world.add(getattr(crafter.objects, thing.capitalize())(world, spot, *known))
    return env


def freeze(env: CrafterText) -> None:
    """From now on, nobody but the player moves."""
    for thing in env.game._world.objects:
        if thing is not env.game.player:
            thing.update = lambda: None


def play(env: CrafterText, *actions: str) -> tuple[dict[str, str], float, bool, bool, dict]:
    """Play these; what the last one is answered with."""
    return [env.step(action) for action in actions][-1]


# Worlds


@functools.cache
def worlds() -> list[tuple[np.ndarray, np.ndarray]]:
    return [draw_world(np.random.RandomState(seed), 64, 64) for seed in range(8)]


def test_noise_is_that_of_the_original_but_for_the_faintest_corners():
    opensimplex = pytest.importorskip("opensimplex")
    original = opensimplex.OpenSimplex(seed=5)
    x, y = np.random.default_rng(0).uniform(-30, 30, (2, 600))
    for z in (0, 7):
        expected = [original.noise3(float(a), float(b), float(z)) for a, b in zip(x, y, strict=True)]
        assert np.abs(noise(original._perm, x, y, z) - expected).max() < 2e-4
        assert np.std(expected) > 0.2


def test_a_world_has_the_materials_of_the_original_where_no_luck_is_involved():
    opensimplex = pytest.importorskip("opensimplex")

    class SameNoise(np.random.RandomState):
        def permutation(self, x):
            return opensimplex.OpenSimplex(seed=simplex_seed)._perm

    area = (40, 40)
    world = crafter.engine.World(area, crafter.constants.materials, (12, 12))
    world.reset(seed=3)
    simplex_seed = np.random.RandomState(3).randint(0, 2**31 - 1)
    crafter.worldgen.generate_world(world, crafter.objects.Player(world, (20, 20)))
    expected = np.array([[world[x, y][0] for y in range(area[1])] for x in range(area[0])])
    materials, _ = draw_world(SameNoise(0), *area)
    expected[expected == "tree"] = materials[materials == "tree"] = "grass"
    lucky = np.isin(expected, ["coal", "iron", "diamond"]) | np.isin(materials, ["coal", "iron", "diamond"])
    assert lucky.mean() < 0.2
    assert (expected == materials)[~lucky].mean() > 0.998
    assert len(set(expected[~lucky])) >= 5


def test_luck_is_as_frequent_as_in_the_original():
    def check(hits, cases, chance):
        assert cases > 1000
        assert abs(hits - cases * chance) < 3 * math.sqrt(cases * chance)

    total = {"grass": 0, "cow": 0, "zombie": 0, "walkable": 0}
    for materials, creatures in worlds():
        x, y = np.indices(materials.shape)
        away = np.hypot(x - 32, y - 32)
        grass, walkable = materials == "grass", np.isin(materials, ["grass", "sand", "path"])
        total["grass"] += (grass & (away > 3)).sum()
        total["cow"] += (creatures == "cow").sum()
        total["walkable"] += (walkable & (away > 10) & (creatures != "cow")).sum()
        total["zombie"] += (creatures == "zombie").sum()
        assert not (creatures != "")[~walkable].any()
        assert not (creatures != "")[away <= 3].any()
        assert (materials[creatures == "skeleton"] == "path").all()
        assert materials[32, 32] == "grass"
    check(total["cow"], total["grass"], 0.015)
    check(total["zombie"], total["walkable"], 0.007)
    found = set(np.concatenate([materials.ravel() for materials, _ in worlds()]))
    assert found == set(crafter.constants.materials) - {"table", "furnace"}
    assert any((creatures == "skeleton").any() for _, creatures in worlds())


def test_who_vanishes_does_not_depend_on_memory_addresses(monkeypatch):
    left = []
    for order in (1, -1):
        env = staged(monkeypatch, {(x, 2): "zombie" for x in range(-6, 3)}, ground="grass")
        world = env.game._world
        chunk = world.chunk_key((30, 34))
        for _ in range(6):
            zombies = [thing for thing in world.objects if thing is not env.game.player]
            env.game._balance_chunk(chunk, zombies[::order])
        left.append([tuple(thing.pos) for thing in world.objects])
    assert len(left[0]) < 9
    assert left[0] == left[1]


def test_a_seed_makes_one_episode_in_every_process():
    code = (
        "import random\n"
        "from turnwise.envs.crafter import CrafterText\n"
        "env, rng, waste = CrafterText(), random.Random(3), [object() for _ in range(WASTE)]\n"
        "print(env.reset(seed=2**63 + 5))\n"
        "for _ in range(60):\n"
        f"    print(env.step(rng.choice(env.actions[:6]))[1:], {STATE})\n"
    )
    others = [
        subprocess.check_output([sys.executable, "-c", code.replace("WASTE", waste)], text=True)
        for waste in ("1", "54321")
    ]
    assert others[0] == others[1]
    assert len(others[0].splitlines()) == 61


def test_a_seed_makes_one_episode_whatever_came_before():
    env = CrafterText()
    seen = []
    for seed in (1, 2, 1):
        rng = random.Random(0)
        seen.append([env.reset(seed=seed), *(env.step(rng.choice(env.actions)) for _ in range(30))])
    assert seen[0] == seen[2]
    assert seen[0] != seen[1]


def test_a_picture_does_not_change_the_game_even_at_night(monkeypatch):
    env = staged(monkeypatch, {(2, 0): "cow"})
    env.game._step = 205
    env.step("Noop")
    assert env.game._world.daylight < 0.1
    before = env.game._world.random.get_state()[1].copy()
    image = env.render()
    assert (image.shape, image.dtype) == ((576, 576, 3), np.uint8)
    assert image.std() > 5
    assert (before == env.game._world.random.get_state()[1]).all()


# What is seen


BOARD = {(0, -1): "tree", (-3, 1): "tree", (1, 0): "water", (2, -1): "cow", (-4, -3): "diamond", (5, 0): "lava"}


def test_clean_text_tells_the_nearest_of_each_kind(monkeypatch):
    env = staged(monkeypatch, BOARD)
    freeze(env)
    observation, *_ = env.step("Noop")
    assert observation["text"].splitlines() == [
        "You face sand.",
        "sand 1 step west",
        "tree 1 step north",
        "water 1 step east",
        "cow 1 step north and 2 steps east",
        "diamond 3 steps north and 4 steps west",
    ]
    assert observation["cue"] == "Health 9/9, food 9/9, drink 9/9, energy 9/9.\nYou carry nothing."


def test_balrog_text_has_the_published_wording(monkeypatch):
    env = staged(monkeypatch, BOARD, style="balrog")
    freeze(env)
    env.game.player.inventory |= {"wood": 2, "wood_pickaxe": 1}
    observation, *_ = env.step("Noop")
    assert observation["text"] == (
        "You see:\n- diamond 7 steps to your north-west\n- sand 1 step to your west\n- tree 1 step to your north\n"
        "- water 1 step to your east\n- cow 3 steps to your north-east\n\nYou face sand at your front."
    )
    assert observation["cue"] == (
        "Your status:\n- health: 9/9\n- food: 9/9\n- drink: 9/9\n- energy: 9/9\n\n"
        "Your inventory:\n- wood: 2\n- wood_pickaxe: 1"
    )
    empty, _ = env.reset(seed=0)
    assert empty["cue"].endswith("- energy: 9/9\n\nYou have nothing in your inventory.")


@pytest.mark.parametrize("style", ["clean", "balrog"])
def test_what_is_faced_is_right_in_all_four_directions(monkeypatch, style):
    around = {(0, -1): "tree", (1, 0): "water", (0, 1): "stone", (-1, 0): "table"}
    env = staged(monkeypatch, around, style=style)
    for direction, offset in DIRECTIONS.items():
        observation, *_ = env.step(f"Move {direction}")
        (faced,) = re.findall("You face (.+?)(?: at your front)?[.]", observation["text"])
        assert faced == around[offset]
        assert env._cell((0, 0)) == (32, 32)


@pytest.mark.parametrize("place", [(0, 0), (63, 63), (0, 40), (30, 1)])
def test_at_the_edge_of_the_world_the_rest_is_still_seen(monkeypatch, place):
    inward = (1 if place[0] < 32 else -1, 1 if place[1] < 32 else -1)
    env = staged(monkeypatch, {inward: "tree"}, place=place)
    text = env.step("Noop")[0]["text"]
    ways = {1: ("south", "east"), -1: ("north", "west")}
    assert f"tree 1 step {ways[inward[1]][0]} and 1 step {ways[inward[0]][1]}" in text
    outside = min(abs(x) + abs(y) for x, y in WINDOW if not (0 <= place[0] + x < 64 and 0 <= place[1] + y < 64))
    (line,) = re.findall("edge of the world (.+)", text)
    assert sum(map(int, re.findall(r"\d+", line))) == outside
    if place == (0, 0):
        assert play(env, "Move West")[0]["text"].startswith("You face edge of the world.")
        assert (
            "You face nothing at your front."
            in play(staged(monkeypatch, place=place, style="balrog"), "Move West")[0]["text"]
        )


def test_a_ripe_plant_an_arrow_and_the_dead_are_told(monkeypatch):
    env = staged(monkeypatch, {(1, 0): "plant", (-2, 0): "plant", (2, 2): "arrow"}, ground="grass")
    env.game._world[33, 32][1].grown = 301
    freeze(env)
    text = env.step("Noop")[0]["text"]
    assert "\nripe plant 1 step east\n" in text
    assert "\nplant 2 steps west\n" in text
    assert "\narrow 2 steps south and 2 steps east" in text
    env = staged(monkeypatch, {(0, 1): "lava"})
    assert env.step("Move South")[0]["text"].startswith("You died.\nYou face sand.\n")
    env = staged(monkeypatch, {(0, 1): "lava"}, style="balrog")
    assert env.step("Move South")[0]["text"].startswith("You died.\n\nYou see:\n- ")


def test_instructions_list_only_goals_that_are_left_and_what_changes_comes_last(monkeypatch):
    for kind in ("brief", "full"):
        env = staged(monkeypatch, {(0, 1): "tree"}, instructions=kind)
        before, info = env.reset(seed=0)
        env.game._world[32, 33] = "tree"
        assert info["progression"] == 0
        after, reward, _, _, info = env.step("Do")
        assert reward == 1
        head, goals = before["instructions"].rsplit("Goals left: ", 1)
        assert len(goals.split(", ")) == len(info["achievements"]) == 22
        assert after["instructions"] == f"{head}Goals left: {goals.replace('collect wood, ', '')}"
        assert (info["achievements"]["collect_wood"], info["progression"]) == (1, 1 / 22)
        assert all(action in head for action in env.actions)
        assert "{" not in head


# Rewards and ends


def test_a_goal_is_rewarded_once_and_health_by_tenths(monkeypatch):
    env = staged(monkeypatch, {(0, 1): "tree", (1, 0): "water", (0, -1): "lava"})
    assert play(env, "Do")[1] == 1
    env.game._world[32, 33] = "tree"
    assert play(env, "Do")[1] == 0
    assert env.step("Noop")[4]["achievements"]["collect_wood"] == 2
    assert play(env, "Move East", "Do")[1] == 1
    env.game.player.health = 5
    assert env.step("Noop")[1] == pytest.approx(-0.4)


def test_the_length_truncates_and_never_before(monkeypatch):
    env = staged(monkeypatch, length=7)
    ends = [env.step("Noop") for _ in range(7)]
    assert [end[2:4] for end in ends] == [(False, False)] * 6 + [(False, True)]
    assert [end[4]["steps_left"] for end in ends] == [6, 5, 4, 3, 2, 1, 0]
    assert CrafterText().length == 2000


@pytest.mark.parametrize("length", [1, 10])
def test_death_terminates_also_on_the_last_step(monkeypatch, length):
    env = staged(monkeypatch, {(1, 0): "lava"}, length=length)
    _, reward, terminated, truncated, info = env.step("Move East")
    assert (terminated, truncated, info["success"]) == (True, False, None)
    assert reward == pytest.approx(-0.9)


def test_sleep_lasts_until_awake_in_one_turn_and_sums_its_rewards(monkeypatch):
    env = staged(monkeypatch)
    env.game.player.inventory["energy"] = 7
    env.game.player.health = env.game.player._last_health = env.game._last_health = 8
    observation, reward, terminated, truncated, info = env.step("Sleep")
    assert not env.game.player.sleeping
    assert not terminated | truncated
    assert info["achievements"]["wake_up"] == 1
    assert 20 < 2000 - info["steps_left"] < 40
    assert "energy 9/9" in observation["cue"]
    assert reward == pytest.approx(1.1)  # woke up, and gained one health


def test_sleep_ends_by_damage_without_the_goal_and_by_the_length(monkeypatch):
    env = staged(monkeypatch, {(1, 0): "zombie"})
    env.game.player.inventory["energy"] = 3
    _, reward, terminated, _, info = env.step("Sleep")
    assert not terminated
    assert info["achievements"]["wake_up"] == 0
    assert info["steps_left"] > 1990
    assert reward == pytest.approx(-0.7)
    env = staged(monkeypatch, length=5)
    env.game.player.inventory["energy"] = 3
    observation, _, terminated, truncated, info = env.step("Sleep")
    assert (terminated, truncated, info["steps_left"]) == (False, True, 0)
    assert observation["text"].startswith("You are asleep.\nYou face sand.\n")
    env = staged(monkeypatch, length=5, style="balrog")
    env.game.player.inventory["energy"] = 3
    observation, *_ = env.step("Sleep")
    assert observation["text"].startswith(
        "You are sleeping, and will not be able take actions until energy is full.\n\n"
    )


def test_sleep_with_full_energy_is_one_step(monkeypatch):
    env = staged(monkeypatch)
    assert env.step("Sleep")[4]["steps_left"] == 1999


@pytest.mark.parametrize("place", [(32, 32), (0, 32), (32, 0), (63, 63)])
def test_crafting_beside_a_table_works_also_at_the_edge_of_the_world(monkeypatch, place):
    corner = (1 if place[0] < 32 else -1, 1 if place[1] < 32 else -1)
    for spot, made in ((corner, 1), ((2 * corner[0], 0), 0)):
        env = staged(monkeypatch, {spot: "table"}, place=place)
        env.game.player.inventory["wood"] = 1
        assert env.step("Make Wood Pickaxe")[4]["achievements"]["make_wood_pickaxe"] == made


# The script


def test_the_script_is_clearly_above_random_play():
    env, rng = CrafterText(length=150), random.Random(0)
    returns = {"script": [], "random": []}
    for name, values in returns.items():
        for seed in range(2):
            env.reset(seed=seed)
            total, ended = 0.0, False
            while not ended:
                _, reward, terminated, truncated, _ = env.step(
                    env.expert() if name == "script" else rng.choice(env.actions)
                )
                total, ended = total + reward, terminated or truncated
            values.append(total)
    assert np.mean(returns["script"]) > np.mean(returns["random"]) + 4


def test_the_script_makes_a_table_and_tools(monkeypatch):
    env = staged(monkeypatch, {(x, 5): "tree" for x in range(-5, 5)} | {(3, 0): "stone", (3, 1): "stone"})
    for _ in range(80):
        env.step(env.expert())
    counts = env._info()["achievements"]
    assert all(counts[f"make_{name}"] for name in ("wood_pickaxe", "wood_sword", "stone_pickaxe", "stone_sword"))


@pytest.mark.parametrize(
    ("things", "vitals", "action", "thought"),
    [
        ({(0, 1): "tree"}, {}, "Do", "I want to collect wood. I face tree."),
        (
            {(0, 3): "tree", (-4, 0): "tree"},
            {},
            "Move South",
            "I want to collect wood. The nearest tree is 3 steps south.",
        ),
        ({(0, 9): "tree"}, {}, "Move South", "I want to collect wood. I see no tree."),
        ({(-1, 0): "zombie"}, {}, "Move West", "I must fight. The nearest zombie is 1 step west."),
        ({(2, 1): "water"}, {"drink": 3}, None, "I am thirsty. The nearest water is 1 step south and 2 steps east."),
        ({(2, 1): "cow"}, {"food": 1}, None, "I am hungry. The nearest cow is 1 step south and 2 steps east."),
        ({}, {"energy": 1}, "Sleep", "I am tired, and no danger is in sight."),
        ({}, {"energy": 8}, "Sleep", "I want to wake up. My energy is not full, and no danger is in sight."),
        ({}, {}, "Noop", "I see nothing that I could do."),
    ],
)
def test_thoughts_tell_what_the_script_wants_and_sees(monkeypatch, things, vitals, action, thought):
    env = staged(monkeypatch, things)
    env.game.player.inventory |= vitals
    assert env.thought() == thought
    assert action in (None, env.expert())


def test_every_thought_agrees_with_the_text(monkeypatch):
    monkeypatch.undo()
    env = CrafterText(length=100)
    observation, _ = env.reset(seed=2)
    facing = places = 0
    ended = False
    while not ended:
        thought, text = env.thought(), observation["text"]
        if faced := re.search(r"I face (.+)\.", thought):
            assert text.startswith(f"You face {faced[1]}.")
            facing += 1
        elif place := re.search(r"The nearest (.+) is (.+)\.", thought):
            assert f"\n{place[1]} {place[2]}\n" in f"{text}\n"
            places += 1
        elif unseen := re.search(r"I see no (.+)\.", thought):
            assert f"\n{unseen[1]} " not in text
        observation, _, terminated, truncated, _ = env.step(env.expert())
        ended = terminated or truncated
    assert facing > 5
    assert places > 5


# Words


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ("Noop", "no op|wait|do nothing|stay"),
        ("Move West", "west|go west|move left|move west 2 steps|walk to the west|move west 1 step"),
        ("Move North", "north|up|move up|go northwards|face north"),
        ("Do", "do (collect wood|chop tree|chop down the tree|collect wood|mine stone|drink|drink water|attack zombie"),
        ("Do", "attack the zombie|eat cow|eat the cow|collect sapling|interact|interact with tree|do collect drink"),
        ("Sleep", "go to sleep|rest|do sleep"),
        ("Place Stone", "put stone|put down a stone"),
        ("Place Table", "make table|make crafting table|place crafting table|build a table"),
        ("Place Furnace", "make furnace|craft a furnace"),
        ("Place Plant", "plant sapling|place sapling|plant the sapling"),
        ("Make Wood Pickaxe", "craft wood pickaxe|make a wooden pickaxe|make wooden pickaxe"),
        ("Make Iron Sword", "craft an iron sword|create iron sword"),
    ],
)
def test_near_misses_are_translated(action, said):
    env = CrafterText()
    known = {phrase: env.translate(phrase) for phrase in said.split("|")}
    assert set(known.values()) == {action}, known


@pytest.mark.parametrize(
    "said", ["", "dance", "move", "make", "make pickaxe", "place cow", "move west 9 steps", "sleepy"]
)
def test_other_words_mean_nothing(said):
    assert CrafterText().translate(said) is None


def test_a_diagonal_becomes_its_first_free_move(monkeypatch):
    for blocked, expected in (
        ({}, "Move North"),
        ({(0, -1): "tree"}, "Move West"),
        ({(0, -1): "cow"}, "Move West"),
        ({(0, -1): "lava"}, "Move West"),
        ({(0, -1): "tree", (-1, 0): "water"}, "Move North"),
    ):
        env = staged(monkeypatch, blocked)
        assert env.translate("move north-west") == env.translate("go northwest") == expected


# The interface


@pytest.mark.parametrize("style", ["clean", "balrog"])
def test_gymnasium_finds_no_fault(monkeypatch, style):
    env = staged(monkeypatch, BOARD, style=style)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env, skip_render_check=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": 0}, "length is 0, but must be a whole number of steps, at least 1"),
        ({"length": 2.5}, "length is 2.5, but must be"),
        ({"style": "fancy"}, "style is 'fancy', but must be one of: clean, balrog"),
        (
            {"instructions": "brif"},
            r"instructions is 'brif' \(did you mean 'brief'\?\), but must be one of: brief, full",
        ),
    ],
)
def test_a_wrong_argument_is_named_with_what_is_allowed(arguments, message):
    with pytest.raises(ValueError, match=message):
        CrafterText(**arguments)


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "crafter", None)
    monkeypatch.delitem(sys.modules, "turnwise.envs.crafter_game", raising=False)
    with pytest.raises(ValueError, match=r"^Crafter is not installed: pip install -e '\.\[crafter\]'$"):
        CrafterText()


def test_an_illegal_action_is_refused_and_costs_no_step(monkeypatch):
    env = staged(monkeypatch)
    with pytest.raises(ValueError, match=r"action is 'Mve West' \(did you mean 'Move West'\?\)"):
        env.step("Mve West")
    assert env._info()["steps_left"] == 2000
