"""Baba-Is-AI in words: the 40 puzzles of BALROG, in which the words that make the rules can be pushed about.

A level is a pure function of (task, split, seed). What a rule means, how a level is drawn and how one is solved stand
in `baba_rules`, `baba_levels` and `baba_solver`. Knows nothing of models, memories or answer formats.

Rules, tasks and odds follow Baba-Is-AI (arXiv 2407.13729), the text BALROG (arXiv 2411.13543). Where ours differs,
it is to mend the original:
- The seed decides the level. There all draws come from numpy's global generator and the seed is ignored.
- When nothing is YOU, the same level starts over and the steps go on counting. There a new level comes unannounced, the
  count starts anew, and the text shows rules of the old level.
- Everything in a cell counts, not only what lies on top. Whoever is WIN wins by any move, not only by a blocked one.
- Of several YOU each may win. There the one visited last decides alone, and one of them may block another.
- An object turns into another. There the new one is put on top of the old one, which stays.
- A rule with a colour does not narrow the same rule without; a key opens only what it really meets; a stack is pushed
  and pulled as a whole; what is MOVE turns around when blocked.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from typing import Any

import gymnasium
from gymnasium import spaces

from turnwise.envs import baba_tiles
from turnwise.envs.baba_levels import SPLITS, TASKS, draw
from turnwise.envs.baba_rules import ACTIONS, PROPERTIES, Rule, Thing, World, step
from turnwise.envs.baba_solver import AS_DRAWN, PLAYED_ON, solve
from turnwise.envs.phrases import Phrases, one_of

LIMIT = 100  # steps
STYLES = ("clean", "balrog")
NO_YOU = ("restart", "terminate")
NOTICES = {  # before the text, when the level has started over
    "clean": "Nothing was you, so the level starts over.\n\n",
    "balrog": "[...] IS YOU rule was broken, environment reset\n",
}

INSTRUCTIONS = {
    "brief": """Actions: {actions}
You move what is "you". Three words in line, such as "ball is win", make a rule. Push words to make or break rules.
Your goal: reach an object that is "win".""",
    "full": """You act in a small world of square cells that holds objects and words. The words make the rules.

Your actions:
- up, right, down, left: every object that is "you" moves one step
- idle: nothing happens

The rules:
- A noun, "is" and a property make a rule if they stand side by side from left to right or from top to bottom. "ball \
is win" holds as long as these three words stand in line.
- You can always push a word, and several in a row at once, but never beyond the edge of the world. To push a word up, \
stand below it and go up. At the edge a word can only be pushed along the edge.
- You walk over objects, unless they are "stop". What is "push" you push, and what is "lose" you must not touch.
- See to it that something always is "you".

You are told which rules hold, then what lies where, seen from the object that you are: "word `win` 2 steps right and \
1 step up" is two columns to your right and one row above you.

Tips:
- If an object is "win" and nothing bars the way, walk there.
- If "wall is stop" bars the way, push one of its words out of line.
- If no object is "win", push its noun beside "is" and "win".
- If an action changed nothing, do not repeat it: do something else.

Your goal: reach an object that is "win".""",
}

COUNT = r"(?:one|\d+) (?:steps?|cells?)"  # however many are said, it is one
GOING = rf"(?:(?:go|move|walk|step|head|push)(?: (?:the )?(?:word|rule) \w+)? )?(?:{COUNT} )?(?:to the )?"
NEAR_MISSES = {
    "idle": r"idle|wait|stay|stand still|do nothing|nothing|no-? ?op|pass",
    "up": rf"{GOING}(?:up(?:wards?)?|north)(?: {COUNT})?",
    "right": rf"{GOING}(?:right(?:wards?)?|east)(?: {COUNT})?",
    "down": rf"{GOING}(?:down(?:wards?)?|south)(?: {COUNT})?",
    "left": rf"{GOING}(?:left(?:wards?)?|west)(?: {COUNT})?",
}


def me(world: World) -> int | None:
    """The cell from which the world is told: of the first object that the last `... is you` covers."""
    for rule in reversed(world.rules):
        if rule.predicate == "you":
            found = next((spot for spot, thing in world.objects if rule.covers(thing)), None)
            if found is not None:
                return found
    return None


def describe(world: World, style: str = "clean") -> str:
    """The rules that hold, then what lies where, row by row, seen from what is YOU.

    The balrog style is BALROG's to the byte, with its gaps: it tells of nothing that lies under something else, of no
    rule that turns objects into others, of no baba and no word for a colour, writes "2 step" leftwards and upwards, and
    has an empty line for YOU unless that is baba.
    """
    balrog = style == "balrog"
    rules = [rule for rule in world.rules if not balrog or rule.predicate in PROPERTIES]
    lines = ["Active rules:", *(_say(rule, colour=not balrog) for rule in rules), "", "Objects on the map:"]
    here = me(world)
    if here is None:
        return "\n".join([*lines, "nothing is you"])
    for spot, stack in enumerate(world.cells):
        for thing in stack[-1:] if balrog else stack:
            if thing.kind == "border":
                continue
            offset = offset_of(world, here, spot, balrog)
            if balrog and thing.kind != "colour" and (thing.kind, thing.name) != ("object", "baba"):
                name = thing.name if thing.kind == "object" else f"rule `{thing.name}`"
                lines.append(f"{name} {offset}" if offset else "")
            elif not balrog and (offset or not world.has(thing, "you")):
                lines.append(f"{_call(thing)} {offset or 'here'}")
    return "\n".join(lines)


def offset_of(world: World, here: int, spot: int, balrog: bool = False) -> str:
    """`3 steps right and 1 step up`; in balrog style `3 steps to the right and 1 step up`; empty if it is here."""
    (my_row, my_column), (row, column) = divmod(here, world.width), divmod(spot, world.width)
    to_the = "to the " if balrog else ""
    parts = []
    for steps, back, forth in ((column - my_column, f"{to_the}left", f"{to_the}right"), (row - my_row, "up", "down")):
        plural = steps > 1 or (steps < -1 and not balrog)
        if steps:
            parts.append(f"{abs(steps)} step{'s' * plural} {forth if steps > 0 else back}")
    return " and ".join(parts)


def _call(thing: Thing) -> str:
    return f"a {thing.name}" if thing.kind == "object" else f"word `{thing.name}`"


def _say(rule: Rule, colour: bool = True) -> str:
    return f"{rule.colour} {rule.noun} is {rule.predicate}".lstrip() if colour else f"{rule.noun} is {rule.predicate}"


class BabaIsAI(gymnasium.Env[dict[str, Any], str]):
    """One of the 40 tasks as text, with a new level at each reset.

    The reward is 1 - 0.9 t / 100 for winning, -1 for touching what is LOSE, and 0 otherwise. Both terminate the
    episode, and 100 steps truncate it. When nothing is YOU any more, the level starts over and the steps go on
    counting; with `on_no_you="terminate"` the episode ends instead, with reward 0.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012
    render_mode = "rgb_array"
    actions = ACTIONS
    default_action = "idle"

    def __init__(
        self,
        task: str = "goto_win",  # with or without BALROG's "env/" before it
        split: str = "train",
        style: str = "clean",
        instructions: str = "brief",
        on_no_you: str = "restart",
    ):
        self.task = one_of("task", str(task).removeprefix("env/"), TASKS)
        self.split = one_of("split", split, SPLITS)
        self.style = one_of("style", style, STYLES)
        self.on_no_you = one_of("on_no_you", on_no_you, NO_YOU)
        template = INSTRUCTIONS[one_of("instructions", instructions, tuple(INSTRUCTIONS))]
        self._instructions = template.format(actions=", ".join(self.actions))
        text = spaces.Text(max_length=4096, charset=string.printable)
        self.observation_space = spaces.Dict({"text": text, "instructions": text})
        self.action_space = Phrases(self.actions)
        self._plan: dict[World, str] = {}  # what the expert means to do in the worlds to come

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, str], dict[str, Any]]:
        super().reset(seed=seed)
        self.world = self._level = draw(self.task, self.split, self.np_random)
        self.steps_left = LIMIT
        self._plan = {}
        return self._observe(), {"steps_left": LIMIT}

    def step(self, action: str) -> tuple[dict[str, str], float, bool, bool, dict[str, Any]]:
        self.world, outcome = step(self.world, one_of("action", action, self.actions))
        self.steps_left -= 1
        lost = outcome is None and me(self.world) is None
        over = lost and self.on_no_you == "terminate"
        restarted = lost and not over
        if restarted:
            self.world = self._level
        success, terminated = outcome == "win", outcome is not None or over
        reward = 1 - 0.9 * (LIMIT - self.steps_left) / LIMIT if success else -1.0 if outcome == "lose" else 0.0
        info = {"success": success, "progression": float(success), "steps_left": self.steps_left}
        return self._observe(restarted), reward, terminated, self.steps_left == 0 and not terminated, info

    def translate(self, said: str) -> str | None:
        """The action that a near-miss means: "move one step to the right" is "right"; None if it means none.

        `said` comes in lower case, with single spaces, without quotes, underscores and end punctuation.
        """
        return next((action for action, pattern in NEAR_MISSES.items() if re.fullmatch(pattern, said)), None)

    def expert(self) -> str:
        """The next action on a way to win from here; idle if none is known."""
        if self.world not in self._plan:
            world, self._plan = self.world, {self.world: self.default_action}
            for action in solve(world, AS_DRAWN if world == self._level else PLAYED_ON) or ():
                self._plan[world] = action
                world, _ = step(world, action)
        return self._plan[self.world]

    def thought(self) -> str:
        """What the expert is about to do, and where it has to go for that, in the words of the text.

        "To make ball is win: word `ball` 3 steps right. I push it up." or "ball is win. I see a ball 1 step up."
        """
        if self.expert() == self.default_action:
            return "I see no way to win from here."
        here, push, last = me(self.world) or 0, "", self.world
        for world, action, after in self._ahead():
            spot = _pushed(world, action, after)
            if spot is not None and not push:
                thing = world.cells[spot][-1]
                push = f"{_call(thing)} {offset_of(self.world, here, spot)}. I push it {action}."
            made = [rule for rule in after.rules if rule not in world.rules]
            broken = [rule for rule in world.rules if rule not in after.rules]
            if push and (made or broken):
                return f"To {'make' if made else 'break'} {_say((made or broken)[0])}: {push}"
            last = after
        yous = [spot for spot, _ in last.find("you")]
        for spot, thing in last.find("win"):
            if spot in yous and not push:
                offset = offset_of(self.world, here, spot)
                return f"{thing.name} is win. I see {_call(thing)} {offset or 'here. I step off it and back'}."
        return push or f"I go {self.expert()}, and win a little later."

    def _ahead(self) -> Iterator[tuple[World, str, World]]:
        """The plan from here to the win: the world, the action in it, and the world after it."""
        world, outcome = self.world, None
        while outcome is None:
            after, outcome = step(world, self._plan[world])
            yield world, self._plan[world], after
            world = after

    def render(self) -> baba_tiles.Image:  # type: ignore[override]
        return baba_tiles.draw(self.world)

    def _observe(self, restarted: bool = False) -> dict[str, str]:
        text = describe(self.world, self.style)
        return {"text": NOTICES[self.style] + text if restarted else text, "instructions": self._instructions}


def _pushed(world: World, action: str, after: World) -> int | None:
    """The cell from which an action pushes something away."""
    for spot, _ in world.find("you"):
        there = spot + world.stride(action)
        if any(map(world.pushable, world.cells[there])) and after.cells[there] != world.cells[there]:
            return there
    return None
