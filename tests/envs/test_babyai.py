"""BabyAI as text: three published episodes, an independent renderer, held-out pairs, expert, ends and wording."""

import os
import random
import re
import subprocess
import sys
import warnings
from collections.abc import Mapping

import pytest
from gymnasium.utils.env_checker import check_env
from minigrid.core.world_object import Ball, Box, Door, Key, Wall, WorldObj
from minigrid.envs.babyai.core.verifier import GoToInstr, Instr, ObjDesc, OpenInstr, PickupInstr, PutNextInstr

from turnwise.envs.babyai import HELD_OUT, TASKS, BabyAIText, describe, goals


def reset(task: str, seed: int, split: str = "train", distractors: int = 0) -> tuple[BabyAIText, str, str]:
    """A fresh environment with the text and the mission of its first observation."""
    env = BabyAIText(task, split, distractors)
    observation, info = env.reset(seed=seed)
    return env, observation["text"], info["mission"]


def staged(task: str, agent: tuple[int, int], heading: int, things: Mapping[tuple[int, int], WorldObj], mission: Instr):
    """An environment with a level laid out by hand; headings are 0 right, 1 down, 2 left, 3 up."""
    env, _, _ = reset(task, seed=0)
    level = env.level
    for x in range(1, level.width - 1):
        for y in range(1, level.height - 1):
            level.grid.set(x, y, Wall() if x == 7 else None)
    for (x, y), thing in things.items():
        level.put_obj(thing, x, y)
    level.agent_pos, level.agent_dir, level.instrs = agent, heading, mission
    mission.reset_verifier(level)
    return env


def replay(env: BabyAIText, episode: list[tuple[str, str]]) -> float:
    """Play (action, lines after it separated by |); success must come with the last action only."""
    reward = 0.0
    for turn, (action, lines) in enumerate(episode, 1):
        observation, reward, terminated, truncated, _ = env.step(action)
        assert observation["text"] == lines.replace(" | ", "\n")
        assert (terminated, truncated) == (turn == len(episode), False)
    return reward


def play(env: BabyAIText, seed: int, noise: float = 0.0) -> tuple[bool, bool]:
    """Let the expert play, now and then overruled at random; (success, a box of the mission was destroyed)."""
    _, info = env.reset(seed=seed)
    rng = random.Random(seed)
    destroyed = False
    while True:
        action = env.expert()
        if rng.random() < noise:
            action = rng.choice(env.actions)
        faced = env.level.grid.get(*env.level.front_pos)
        if action == "toggle" and isinstance(faced, Box):
            destroyed |= f"{faced.color} box" in info["mission"]
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            return terminated, destroyed


def slow_text(env: BabyAIText) -> str:
    """The observation again, written from the description alone: world coordinates, sets and sorting."""
    level = env.level
    (ax, ay), (fx, fy) = map(int, level.agent_pos), map(int, level.dir_vec)

    def at(right: int, ahead: int) -> WorldObj | None:
        x, y = ax + ahead * fx - right * fy, ay + ahead * fy + right * fx
        inside = 0 <= x < level.width and 0 <= y < level.height
        return level.grid.get(x, y) if inside else Wall()

    def opaque(right: int, ahead: int) -> bool:
        thing = at(right, ahead)
        return thing is not None and (thing.type == "wall" or (isinstance(thing, Door) and not thing.is_open))

    lit = {(0, 0)}
    for ahead in range(7):  # light spreads along a row both ways, and from each clear cell to the row beyond
        for way in (1, -1):
            for right in range(-3 * way, 3 * way, way):
                if (right, ahead) in lit and not opaque(right, ahead):
                    lit |= {(right + way, ahead), (right + way, ahead + 1), (right, ahead + 1)}
    things = {place: thing for place in lit if place[1] < 7 and place != (0, 0) and (thing := at(*place))}

    def steps(k: int) -> str:
        return "1 step" if k == 1 else f"{k} steps"

    lines = []
    if level.carrying:
        lines.append(f"You carry a {level.carrying.color} {level.carrying.type}")
    for direction, ray in (
        ("forward", [(0, k) for k in range(1, 7)]),
        ("left", [(-k, 0) for k in range(1, 4)]),
        ("right", [(k, 0) for k in range(1, 4)]),
    ):
        hits = [k for k, place in enumerate(ray, 1) if place in things]
        if hits and things[ray[hits[0] - 1]].type == "wall":
            lines.append(f"a wall {steps(hits[0])} {direction}")
    for (right, ahead), thing in sorted(things.items(), key=lambda item: (item[0][0], -item[0][1])):
        if thing.type == "wall":
            continue
        name = f"{thing.color} {thing.type}"
        if isinstance(thing, Door):
            name = ("open " if thing.is_open else "locked " if thing.is_locked else "closed ") + name
        sideways = f"{steps(abs(right))} {'left' if right < 0 else 'right'}" if right else ""
        forward = f"{steps(ahead)} forward" if ahead else ""
        article = "an" if name.startswith("o") else "a"
        lines.append(f"{article} {name} {' and '.join(filter(None, (sideways, forward)))}")
    return "\n".join(lines)


# What is seen


def test_the_published_goto_episode_replays():
    env = staged("goto", (1, 1), 0, {(3, 4): Box("red")}, GoToInstr(ObjDesc("box", "red")))
    reward = replay(
        env,
        [
            ("go forward", "a wall 5 steps forward | a wall 1 step left | a red box 3 steps right and 1 step forward"),
            ("go forward", "a wall 4 steps forward | a wall 1 step left | a red box 3 steps right"),
            ("turn right", "a wall 3 steps right | a red box 3 steps forward"),
            ("go forward", "a wall 3 steps right | a red box 2 steps forward"),
            ("go forward", "a wall 3 steps right | a red box 1 step forward"),
        ],
    )
    assert reward == 0.9296875


def test_the_published_open_episode_replays():
    things = {(6, 4): Key("purple"), (7, 3): Door("purple", is_locked=True)}
    env = staged("open", (4, 4), 2, things, OpenInstr(ObjDesc("door", "purple")))
    key, door, carry = "a purple key", "a locked purple door", "You carry a purple key"
    reward = replay(
        env,
        [
            ("turn right", f"a wall 4 steps forward | {key} 2 steps right | {door} 3 steps right and 1 step forward"),
            ("turn right", f"a wall 3 steps right | {door} 1 step left and 3 steps forward | {key} 2 steps forward"),
            ("go forward", f"a wall 3 steps right | {door} 1 step left and 2 steps forward | {key} 1 step forward"),
            (
                "pick up",
                f"{carry} | a wall 2 steps forward | a wall 3 steps right | {door} 1 step left and 2 steps forward",
            ),
            (
                "go forward",
                f"{carry} | a wall 1 step forward | a wall 3 steps right | {door} 1 step left and 1 step forward",
            ),
            (
                "turn left",
                f"{carry} | a wall 4 steps forward | a wall 1 step right | {door} 1 step right and 1 step forward",
            ),
            ("go forward", f"{carry} | a wall 3 steps forward | {door} 1 step right"),
            ("turn right", f"{carry} | a wall 3 steps left | {door} 1 step forward"),
            ("toggle", f"{carry} | a wall 3 steps left | an open purple door 1 step forward"),
        ],
    )
    assert reward == 0.93671875


def test_the_published_putnext_episode_replays():
    things = {(1, 6): Box("green"), (1, 3): Ball("grey")}
    env = staged("putnext", (4, 3), 3, things, PutNextInstr(ObjDesc("box", "green"), ObjDesc("ball", "grey")))
    for action in ("turn right", "turn right", *["go forward"] * 3, "turn right", "go forward"):
        env.step(action)
    box, ball = "a green box", "a grey ball"
    carry = "You carry a green box | "
    reward = replay(
        env,
        [
            ("go forward", f"a wall 1 step left | {box} 1 step forward | {ball} 3 steps right and 1 step forward"),
            (
                "pick up",
                f"{carry}a wall 2 steps forward | a wall 1 step left | {ball} 3 steps right and 1 step forward",
            ),
            ("go forward", f"{carry}a wall 1 step forward | a wall 1 step left | {ball} 3 steps right"),
            ("turn right", f"{carry}a wall 1 step left | {ball} 3 steps forward"),
            ("go forward", f"{carry}a wall 1 step left | {ball} 2 steps forward"),
            ("drop", f"a wall 1 step left | {ball} 2 steps forward | {box} 1 step forward"),
        ],
    )
    assert reward == 0.90859375


@pytest.mark.parametrize("distractors", [0, 6])
@pytest.mark.parametrize("task", TASKS)
def test_the_text_equals_that_of_an_independent_renderer(task, distractors):
    env = BabyAIText(task, distractors=distractors)
    rng = random.Random(1)
    for seed in range(6):
        text, ended = env.reset(seed=seed)[0]["text"], False
        while not ended:
            assert text == slow_text(env)
            action = env.expert() if rng.random() < 0.3 else rng.choice(env.actions)
            observation, _, terminated, truncated, _ = env.step(action)
            text, ended = observation["text"], terminated or truncated
        assert text == slow_text(env)


def test_each_state_of_a_door_is_told():
    ahead = 5 * 7 + 3
    for door, words in (
        (Door("red"), "a closed red door"),
        (Door("red", is_locked=True), "a locked red door"),
        (Door("red", is_open=True), "an open red door"),
    ):
        assert describe([door if place == ahead else None for place in range(49)], None) == f"{words} 1 step forward"


def test_an_empty_view_says_so():
    assert describe([None] * 49, None) == "You see nothing"
    assert describe([None] * 49, Key("red")) == "You carry a red key\nYou see nothing"


# Levels


@pytest.mark.parametrize(
    ("task", "grammar"),
    [
        ("goto", "go to X"),
        ("pickup", "pick up X"),
        ("open", r"open the (?:\w+ )?door"),
        ("putnext", "put X next to X"),
        ("pick_up_seq_go_to", "pick up X, then go to X|go to X after you pick up X"),
    ],
)
def test_missions_follow_their_grammar_and_their_articles_count(task, grammar):
    pattern = grammar.replace("X", r"(?:the|a) \w+ (?:key|ball|box)")
    articles = set()
    for seed in range(40):
        env, _, mission = reset(task, seed, distractors=4)
        assert re.fullmatch(pattern, mission)
        present = [(thing.color, thing.type) for thing in env.level.grid.grid if thing]
        for article, colour, kind in re.findall(r"(the|a) (\w+) (key|ball|box|door)", mission):
            assert (article == "a") == (present.count((colour, kind)) > 1)
            articles.add(article)
    assert articles == ({"the"} if task == "open" else {"the", "a"})


def test_a_sequence_is_told_in_both_orders_and_a_door_with_and_without_its_colour():
    sequences = {" after " in reset("pick_up_seq_go_to", seed)[2] for seed in range(20)}
    doors = {reset("open", seed)[2] == "open the door" for seed in range(20)}
    assert sequences == doors == {True, False}


@pytest.mark.parametrize("task", TASKS)
def test_everything_can_be_reached_without_moving_anything(task):
    for seed in range(30):
        env, *_ = reset(task, seed, distractors=8)
        level = env.level
        reached, frontier = set(), [(int(level.agent_pos[0]), int(level.agent_pos[1]))]
        while frontier:
            x, y = place = frontier.pop()
            if place not in reached:
                reached.add(place)
                if level.grid.get(x, y) is None or isinstance(level.grid.get(x, y), Door):
                    frontier += [(x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)]
        for x in range(level.width):
            for y in range(level.height):
                assert (x, y) in reached or isinstance(level.grid.get(x, y), Wall) or level.grid.get(x, y) is None


def test_putnext_never_starts_with_the_two_side_by_side_or_alike():
    for seed in range(60):
        env, _, mission = reset("putnext", seed, distractors=4)
        first, second = re.findall(r"(\w+) (key|ball|box)", mission)
        assert first != second
        places = {first: [], second: []}
        for index, thing in enumerate(env.level.grid.grid):
            if thing and (thing.color, thing.type) in places:
                places[thing.color, thing.type].append(divmod(index, env.level.width))
        gaps = [abs(a - c) + abs(b - d) for a, b in places[first] for c, d in places[second]]
        assert min(gaps) > 1


@pytest.mark.parametrize("task", TASKS)
def test_only_test_missions_name_held_out_pairs_and_they_name_nothing_else(task):
    for split, seeds in (("train", 150), ("test", 40)):
        for seed in range(seeds):
            env, _, mission = reset(task, seed, split)
            named = re.findall(r"(\w+) (key|ball|box|door)", mission.replace("the door", ""))
            doors = [(thing.color, "door") for thing in env.level.grid.grid if isinstance(thing, Door)]
            assert all((pair in HELD_OUT) == (split == "test") for pair in named + doors)
            assert named or split == "train"


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("split", ["train", "test"])
def test_what_a_hidden_level_asks_for_first_is_seen_in_no_direction(task, split):
    env = BabyAIText(task, split, hidden=True)
    for seed in range(2):
        observation, info = env.reset(seed=seed)
        colour, kind = goals(info["mission"])[0]
        for _ in range(4):
            assert not re.search(rf"\b{colour or '[a-z]+'} {kind} [0-9]", observation["text"])
            observation, *_ = env.step("turn right")
        assert play(env, seed) == (True, False)


def test_few_levels_are_hidden_and_a_seed_makes_one_of_them_whatever_came_before():
    hidden, used = BabyAIText(hidden=True), BabyAIText(hidden=True)
    drawn = []
    for seed in range(3):
        hidden.reset(seed=seed)
        used.reset(seed=99)
        used.reset(seed=seed)
        assert hidden.level.hash() == used.level.hash()
        assert hidden.level.agent_dir == used.level.agent_dir
        drawn.append(hidden.level.hash() == reset("goto", seed)[0].level.hash())
    assert not all(drawn)


@pytest.mark.parametrize("task", TASKS)
def test_a_seed_makes_one_level_whoever_draws_it_and_whatever_came_before(task):
    for split in ("train", "test"):
        used, *_ = reset(task, 99, split, 3)
        for seed in range(6):
            used.reset(seed=seed)
            fresh, *_ = reset(task, seed, split, 3)
            assert used.level.hash() == fresh.level.hash()
            assert used.expert() == fresh.expert()
            used.step("turn left")


def test_a_seed_makes_the_same_levels_in_another_process():
    code = (
        "from turnwise.envs.babyai import *\n"
        "for task in TASKS:\n"
        "    env = BabyAIText(task, distractors=2)\n"
        "    for seed in (3, 2**63 + 5):\n"
        "        print(env.reset(seed=seed)[0], env.level.hash(64), env.expert())\n"
    )
    others = [
        subprocess.check_output([sys.executable, "-c", code], text=True, env={**os.environ, "PYTHONHASHSEED": salt})
        for salt in "12"
    ]
    assert others[0] == others[1]
    assert len(others[0].splitlines()) == 2 * len(TASKS)


def test_without_a_seed_each_reset_draws_another_level():
    env, *_ = reset("goto", 0)
    levels = {env.level.hash()}
    for _ in range(5):
        env.reset()
        levels.add(env.level.hash())
    assert len(levels) == 6


def test_drawing_a_level_prints_nothing(capsys):
    for seed in range(20):
        reset("putnext", seed, distractors=8)
    assert capsys.readouterr() == ("", "")


# Rewards and ends


@pytest.mark.parametrize("task", TASKS)
def test_the_limit_truncates_without_reward(task):
    env = BabyAIText(task)
    _, info = env.reset(seed=1)
    limit = 64 if task in ("goto", "pickup") else 128
    for left in reversed(range(limit)):
        assert info["steps_left"] == left + 1
        _, reward, terminated, truncated, info = env.step("drop")
        assert (reward, terminated, truncated) == (0, False, left == 0)
        assert info == {"success": False, "steps_left": left}


@pytest.mark.parametrize("task", TASKS)
def test_success_on_the_last_step_is_terminated_and_earns_a_tenth(task):
    env, *_ = reset(task, 2)
    actions, reward, ended = [], 0.0, False
    while not ended:
        actions.append(env.expert())
        _, reward, ended, _, _ = env.step(actions[-1])
    limit = env.level.max_steps
    assert reward == 1 - 0.9 * (len(actions) / limit)

    env.reset(seed=2)
    env.level.step_count = limit - len(actions)
    ends = [env.step(action) for action in actions]
    assert [end[2] for end in ends] == [False] * (len(actions) - 1) + [True]
    assert ends[-1][1] == pytest.approx(0.1)
    assert ends[-1][3] is False
    assert ends[-1][4] == {"success": True, "steps_left": 0}


def test_toggling_a_box_makes_it_vanish_and_nothing_says_that_the_mission_is_lost():
    env = staged("pickup", (1, 1), 0, {(2, 1): Box("red")}, PickupInstr(ObjDesc("box", "red")))
    env.expert()
    observation, reward, terminated, truncated, info = env.step("toggle")
    assert "box" not in observation["text"]
    assert (reward, terminated, truncated, info["success"]) == (0, False, False, False)
    assert env.expert() in env.actions


def test_what_is_already_in_the_hands_cannot_be_picked_up_again():
    env = staged("pickup", (1, 1), 0, {(2, 1): Key("blue"), (3, 1): Box("red")}, PickupInstr(ObjDesc("box", "red")))
    for action in ("pick up", "go forward", "pick up"):
        observation, _, terminated, _, _ = env.step(action)
    assert observation["text"].startswith("You carry a blue key\n")
    assert not terminated


# The expert


@pytest.mark.parametrize("task", TASKS)
def test_the_expert_always_succeeds(task):
    for split, seeds in (("train", 30), ("test", 10)):
        env = BabyAIText(task, split)
        assert all(play(env, seed)[0] for seed in range(seeds))


@pytest.mark.parametrize("distractors", [0, 4])
@pytest.mark.parametrize("task", TASKS)
def test_the_expert_recovers_when_half_the_actions_are_random_unless_the_target_was_destroyed(task, distractors):
    env = BabyAIText(task, distractors=distractors)
    ends = [play(env, seed, noise=0.5) for seed in range(25)]
    assert all(success or destroyed for success, destroyed in ends)
    assert sum(success for success, _ in ends) >= 20


@pytest.mark.parametrize("task", TASKS)
def test_the_expert_takes_over_in_the_middle_of_an_episode(task):
    env = BabyAIText(task)
    rng = random.Random(5)
    harmless = [action for action in env.actions if action != "toggle"]
    for seed in range(15):
        env.reset(seed=seed)
        ended = any(env.step(rng.choice(harmless))[2] for _ in range(25))
        while not ended:
            _, _, ended, truncated, _ = env.step(env.expert())
            assert not truncated


def test_watching_the_expert_does_not_change_the_episode():
    alone, *_ = reset("putnext", 4)
    watched, *_ = reset("putnext", 4)
    rng = random.Random(4)
    for _ in range(40):
        action = rng.choice(alone.actions)
        watched.expert()
        watched.thought()
        assert alone.step(action) == watched.step(action)


# Thoughts


def target(text: str, mission: str, fetched: bool) -> tuple[str, str]:
    """The colour (of a word or any) and kind now looked for, read off by hand from the mission."""
    if "door" in mission:
        colour = re.search(r"open the (\w+) door", mission) or re.search(r"(\w+) door", text)
        kind = "door" if "You carry" in text else "key"
        return colour[1] if colour else r"\w+", kind
    things = re.findall(r"(\w+) (key|ball|box)", mission)
    if " after " in mission:
        things.reverse()
    return things[-1] if fetched else things[0]


@pytest.mark.parametrize("task", TASKS)
def test_a_thought_names_the_current_target_and_its_offset_as_seen(task):
    env = BabyAIText(task)
    for seed in range(12):
        observation, info = env.reset(seed=seed)
        mission, fetched, ended = info["mission"], False, False
        while not ended:
            text, thought = observation["text"], env.thought()
            assert 4 <= len(thought.split()) <= 13
            first = " ".join(target(text, mission, fetched=False))
            carried = re.match(f"You carry a {first}$", text, re.MULTILINE) is not None
            fetched = carried or (fetched and task == "pick_up_seq_go_to")
            colour, kind = target(text, mission, fetched)
            offsets = re.findall(rf"^an? (?:\w+ )?{colour} {kind} (.+)$", text, re.MULTILINE)
            if offsets:
                told = re.fullmatch(rf"I see a {colour} {kind} (.+)\.", thought)
                assert told is not None
                assert told[1] in offsets
            else:
                unnamed = kind if colour == r"\w+" else f"{colour} {kind}"
                assert thought == f"I see no {unnamed}."
            observation, _, ended, _, _ = env.step(env.expert())


def test_a_thought_takes_the_nearest_of_equal_targets():
    env = staged("goto", (1, 1), 0, {(4, 2): Ball("red"), (6, 1): Ball("red")}, GoToInstr(ObjDesc("ball", "red")))
    env._goals = [("red", "ball")]
    env.step("pick up")
    assert env.thought() == "I see a red ball 1 step right and 3 steps forward."


# Words


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ("turn left", "left|turn to the left|turn to left|rotate left|rotate to the left|turnleft"),
        ("turn right", "right|turn to the right|turn to right|rotate right|rotate to the right|turnright"),
        ("go forward", "forward|move forward|walk forward|step forward|go straight|go ahead|goforward|go forwards"),
        ("pick up", "pickup|pick it up|grab|take|grab it|pick up the red ball|take a grey box|pick the blue key up"),
        ("drop", "put down|put it down|drop it|drop the red ball|put down the yellow box|drop the object"),
        ("toggle", "open|unlock|open door|open the door|unlock the red door|toggle the door|toggle purple door"),
    ],
)
def test_near_misses_are_translated_and_legal_actions_mean_themselves(action, said):
    env = BabyAIText()
    for phrase in [action, *said.split("|")]:
        assert env.translate(phrase) == action, phrase


@pytest.mark.parametrize(
    "said",
    [
        "",
        "dance",
        "open the box",
        "toggle the red box",
        "turn",
        "turn around",
        "go back",
        "pick up the door",
        "leftover",
    ],
)
def test_other_words_mean_nothing(said):
    assert BabyAIText().translate(said) is None


def test_brief_instructions_list_the_actions_in_one_line_and_end_with_the_goal():
    observation, info = BabyAIText("putnext").reset(seed=0)
    lines = observation["instructions"].splitlines()
    assert lines[0] == f"Actions: {', '.join(BabyAIText.actions)}"
    assert lines[-1] == f"Your goal: {info['mission']}."
    assert len(observation["instructions"].split()) <= 50


def test_full_instructions_explain_each_action_and_warn_of_the_box():
    observation, info = BabyAIText("goto", instructions="full").reset(seed=0)
    text = observation["instructions"]
    assert text.endswith(f"\nYour goal: {info['mission']}.")
    assert all(f"\n- {action}: " in text for action in BabyAIText.actions)
    assert "Never toggle a box" in text
    assert "{" not in text


# The interface


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("instructions", ["brief", "full"])
def test_gymnasium_finds_no_fault(task, instructions):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(BabyAIText(task, instructions=instructions), skip_render_check=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": "pick_up"}, r"task is 'pick_up' \(did you mean 'pickup'\?\), but must be one of: goto, pickup"),
        ({"task": 3}, "task is 3, but must be one of: goto"),
        ({"split": "tests"}, r"split is 'tests' \(did you mean 'test'\?\), but must be one of: train, test"),
        ({"instructions": "long"}, "instructions is 'long', but must be one of: brief, full"),
        ({"distractors": -1}, "distractors is -1, but must be a whole number from 0 to 8"),
        ({"distractors": 9}, "distractors is 9, but must be a whole number from 0 to 8"),
        ({"hidden": "no"}, "hidden is 'no', but must be true or false"),
    ],
)
def test_a_wrong_argument_is_named_with_what_is_allowed(arguments, message):
    with pytest.raises(ValueError, match=message):
        BabyAIText(**arguments)


def test_an_illegal_action_is_refused_and_costs_no_step():
    env, *_ = reset("goto", 0)
    with pytest.raises(ValueError, match=r"action is 'go foward' \(did you mean 'go forward'\?\)"):
        env.step("go foward")
    assert env.level.steps_remaining == 64
