"""The five BabyAI tasks played in words: what the agent sees is a list of lines, what it does is a phrase.

A level is a pure function of (task, split, distractors, hidden, seed). Rules, success tests and expert are minigrid's;
levels, wording and thoughts are ours. Knows nothing of models, memories or answer formats.

Some (colour, kind) pairs are held out: no training mission asks for one, every test mission asks for nothing else.
"""

from __future__ import annotations

import re
import string
from typing import Any

import gymnasium
from gymnasium import spaces
from minigrid.core.actions import Actions
from minigrid.core.constants import COLOR_NAMES
from minigrid.core.roomgrid import RoomGrid
from minigrid.core.world_object import Door, Wall, WorldObj
from minigrid.envs.babyai.core import verifier
from minigrid.envs.babyai.core.roomgrid_level import RejectSampling, RoomGridLevel
from minigrid.utils.baby_ai_bot import BabyAIBot, DisappearedBoxError, DropSubgoal

from turnwise.envs.phrases import Phrases, one_of

TASKS = ("goto", "pickup", "open", "putnext", "pick_up_seq_go_to")
SPLITS = ("train", "test")
HELD_OUT = {("yellow", "box"), ("red", "key"), ("green", "ball"), ("red", "door"), ("grey", "door")}
MAX_DISTRACTORS = 8  # BabyAI's default; with many more, hardly a layout leaves everything within reach

INSTRUCTIONS = {  # what differs between episodes comes last, so that models read the rest once
    "brief": """Actions: {actions}
Your goal: {mission}.""",
    "full": """You act in a small world of square cells: one room, or two rooms joined by a door.

Your actions:
- turn left: turn to your left on the spot
- turn right: turn to your right on the spot
- go forward: move one step, if the cell you face is empty or an open door
- pick up: take the key, ball or box one step in front of you, if your hands are empty
- drop: put what you carry into the cell you face, if it is empty
- toggle: open or close the door you face; a locked one opens only if you carry the key of its colour. Never toggle \
a box: that destroys it.

You are told what is in sight, one line a thing, as seen from where you stand and look: "a red ball 2 steps left and \
1 step forward" is one row ahead and two columns to your left. Walls are told straight ahead and beside you. You see \
6 steps ahead and 3 to each side, but nothing behind you, behind walls or behind closed doors. "You carry" names what \
is in your hands.

Tips:
- If your target is not in sight, turn and move until it is. Then bring it to "1 step forward": there you reach it.
- Going to an object means to face it. Putting one next to another means to drop it beside it, not diagonally.
- If an action changed nothing, do not repeat it: do something else.

Your goal: {mission}.""",
}

COLOUR = "|".join(COLOR_NAMES)
NAMED = re.compile(rf"(?:({COLOUR}) )?(key|ball|box|door)")  # in a mission
CARRIED = re.compile(r"You carry a (\w+) (\w+)")
SEEN = re.compile(rf"^an? (?:\w+ )?({COLOUR}) (key|ball|box|door) (.+)$", re.MULTILINE)

THING = rf"(?:it|(?:(?:the|an?) )?(?:(?:{COLOUR}) )?(?:object|key|ball|box))"
NEAR_MISSES = {  # "open the box" is not among them: it would destroy the box
    "turn left": r"(?:(?:turn|rotate) ?)?(?:to )?(?:the )?left",
    "turn right": r"(?:(?:turn|rotate) ?)?(?:to )?(?:the )?right",
    "go forward": r"(?:(?:go|move|walk|step) ?)?(?:forwards?|ahead|straight(?: ahead| forward)?)",
    "pick up": rf"(?:pick ?up|grab|take)(?: {THING})?|pick {THING} up",
    "drop": rf"(?:drop|put ?down)(?: {THING})?|put {THING} down",
    "toggle": rf"(?:toggle|open|unlock)(?: it| (?:(?:the|an?) )?(?:(?:{COLOUR}) )?(?:locked )?door)?",
}

VIEW = 7  # the agent stands in the middle of the last row of a 7 x 7 view and looks up
AHEAD, SIDE = VIEW - 1, VIEW // 2
HERE = AHEAD * VIEW + SIDE  # its place in the flat view


def _offset(column: int, row: int) -> str:
    """Where a cell of the view lies: `_offset(5, 5)` is "2 steps right and 1 step forward"."""
    right, forward = column - SIDE, AHEAD - row
    parts = [(abs(right), "left" if right < 0 else "right"), (forward, "forward")]
    return " and ".join(f"{k} step{'s' * (k > 1)} {direction}" for k, direction in parts if k)


# In the order of the lines: columns from left to right, each from far to near.
OFFSETS = {row * VIEW + column: _offset(column, row) for column in range(VIEW) for row in range(VIEW)}
del OFFSETS[HERE]
RAYS = [  # forward, left, right; each from near to far
    [HERE + stride * k for k in range(1, reach + 1)] for stride, reach in ((-VIEW, AHEAD), (-1, SIDE), (1, SIDE))
]


def describe(cells: list[WorldObj | None], carrying: WorldObj | None) -> str:
    """The lines for a flat view in which unseen cells are None: the carried thing, walls, then everything else."""
    carried = [f"You carry a {carrying.color} {carrying.type}"] if carrying else []
    seen = []
    for ray in RAYS:
        nearest = next((spot for spot in ray if cells[spot]), HERE)
        if isinstance(cells[nearest], Wall):
            seen.append(f"a wall {OFFSETS[nearest]}")
    for spot, offset in OFFSETS.items():
        thing = cells[spot]
        if isinstance(thing, Door):
            state = "an open" if thing.is_open else "a locked" if thing.is_locked else "a closed"
            seen.append(f"{state} {thing.color} door {offset}")
        elif thing and not isinstance(thing, Wall):
            seen.append(f"a {thing.color} {thing.type} {offset}")
    return "\n".join(carried + (seen or ["You see nothing"]))


class Level(RoomGridLevel):
    """One task on minigrid: it draws rooms and missions, and observes in words instead of pixels."""

    def __init__(self, task: str, split: str, distractors: int):
        self.task, self.held_out, self.distractors = task, split == "test", distractors
        super().__init__(room_size=8, num_rows=1, num_cols=2 if task == "open" else 1)

    def gen_obs(self) -> dict[str, Any]:
        view, _ = self.gen_obs_grid()
        return {"text": describe(view.grid, self.carrying)}

    def _gen_grid(self, width: int, height: int) -> None:
        """Draw until a level is accepted. The parent does the same, but prints every refusal."""
        while True:
            RoomGrid._gen_grid(self, width, height)
            try:
                self.instrs = self._two_rooms() if self.task == "open" else self._one_room()
                self.check_objs_reachable()
                self.validate_instrs(self.instrs)
            except (RejectSampling, RecursionError):
                continue
            self.mission = self.instrs.surface(self)
            return

    def _two_rooms(self) -> verifier.Instr:
        locked, wall = self._rand_elem([(0, 0), (1, 2)])  # the left room with its right wall, or the other way round
        colour = self._rand_elem([c for c in COLOR_NAMES if ((c, "door") in HELD_OUT) == self.held_out])
        self.add_door(locked, 0, wall, colour, locked=True)
        self.add_object(1 - locked, 0, "key", colour)
        self.add_distractors(num_distractors=self.distractors, all_unique=False)
        self.place_agent(1 - locked, 0)
        named = self.held_out or self._rand_bool()
        return verifier.OpenInstr(verifier.ObjDesc("door", colour if named else None))

    def _one_room(self) -> verifier.Instr:
        self.place_agent(0, 0)
        num_targets = 1 if self.task in ("goto", "pickup") else 2
        things = self.add_distractors(0, 0, num_targets + self.distractors, all_unique=False)
        targets = self._rand_subset(things, num_targets)
        if any(((thing.color, thing.type) in HELD_OUT) != self.held_out for thing in targets):
            raise RejectSampling
        first, last = (verifier.ObjDesc(thing.type, thing.color) for thing in (targets[0], targets[-1]))
        pick_up, go_to = verifier.PickupInstr(first), verifier.GoToInstr(last)
        in_order = verifier.BeforeInstr(pick_up, go_to), verifier.AfterInstr(go_to, pick_up)
        missions = {"goto": go_to, "pickup": pick_up, "putnext": verifier.PutNextInstr(first, last)}
        return missions.get(self.task) or self._rand_elem(in_order)


class BabyAIText(gymnasium.Env[dict[str, Any], str]):
    """One of the five BabyAI tasks as text, with a new level at each reset.

    The reward is 1 - 0.9 t / limit at success and 0 otherwise. Only success terminates an episode. The limit, 64 steps
    a room and a leg (putnext and the sequence have two), truncates it. Nothing says that a mission has become
    impossible.

    `hidden` draws only levels whose first thing is out of sight at the start, whichever way the agent turns: about one
    in 40 of goto. Who meets them as seldom as that does not learn to go and look.
    """

    actions = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle")  # in minigrid's order
    default_action = "go forward"

    def __init__(
        self,
        task: str = "goto",
        split: str = "train",
        distractors: int = 0,
        hidden: bool = False,
        instructions: str = "brief",
    ):
        if distractors not in range(MAX_DISTRACTORS + 1):
            raise ValueError(f"distractors is {distractors!r}, but must be a whole number from 0 to {MAX_DISTRACTORS}.")
        if not isinstance(hidden, bool):
            raise ValueError(f"hidden is {hidden!r}, but must be true or false.")
        self.task = one_of("task", task, TASKS)
        self.level = Level(task, one_of("split", split, SPLITS), distractors)
        self.hidden = hidden
        self._template = INSTRUCTIONS[one_of("instructions", instructions, tuple(INSTRUCTIONS))]
        text = spaces.Text(max_length=4096, charset=string.printable)
        self.observation_space = spaces.Dict({"text": text, "instructions": text})
        self.action_space = Phrases(self.actions)
        self._text = ""  # as last observed
        self._goals: list[tuple[str, str]] = []  # of the mission, in order
        self._bot: BabyAIBot | None = None  # None: not asked yet, or given up
        self._advice: str | None = None  # None: the expert has not been asked in this episode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, str], dict[str, Any]]:
        super().reset(seed=seed)
        shown = self._draw()
        while self.hidden and self._in_sight():
            shown = self._draw()
        self._bot = self._advice = None
        info = {"mission": self.level.mission, "steps_left": self.level.steps_remaining}
        return self._observe(shown["text"]), info

    def step(self, action: str) -> tuple[dict[str, str], float, bool, bool, dict[str, Any]]:
        index = self.actions.index(one_of("action", action, self.actions))
        shown, reward, success, at_limit, _ = self.level.step(index)
        observation = self._observe(shown["text"])
        if self._advice is not None and not (success or at_limit):
            self._advice = self._advise(index)
        info = {"success": success, "steps_left": self.level.steps_remaining}
        return observation, float(reward), success, at_limit and not success, info

    def translate(self, said: str) -> str | None:
        """The action that a near-miss means: "grab the red ball" is "pick up"; None if it means none.

        `said` comes in lower case, with single spaces, without quotes, underscores and end punctuation.
        """
        return next((action for action, pattern in NEAR_MISSES.items() if re.fullmatch(pattern, said)), None)

    def expert(self) -> str:
        """What minigrid's bot would do now. From the first call in an episode on, it watches whoever plays."""
        if self._advice is None:
            self._advice = self._advise(None)
        return self._advice

    def thought(self) -> str:
        """Where the current target is, as far as the mission and the text in sight tell, in the words of that text.

        "I see a red ball 3 steps right and 2 steps forward." or "I see no red ball."
        """
        seen = SEEN.findall(self._text)
        door = next((colour for colour, kind, _ in seen if kind == "door"), "")  # in case the mission names none
        first, last = ((colour or door, kind) for colour, kind in (self._goals[0], self._goals[-1]))
        colour, kind = last if _holds(self._text, first) else first
        found = [(offset, c) for c, k, offset in seen if k == kind and colour in ("", c)]
        if not found:
            return f"I see no {colour} {kind}.".replace("  ", " ")
        offset, colour = min(found, key=lambda place: sum(map(int, re.findall(r"\d+", place[0]))))
        return f"I see a {colour} {kind} {offset}."

    def _draw(self) -> dict[str, Any]:
        shown, _ = self.level.reset(seed=int(self.np_random.integers(2**63)))
        self._goals = goals(self.level.mission)
        return shown

    def _in_sight(self) -> bool:
        """Whether the first thing of the mission can be seen from here in any direction."""
        level, (colour, kind) = self.level, self._goals[0]
        ahead, seen = level.agent_dir, ""
        for level.agent_dir in range(4):
            seen += level.gen_obs()["text"] + "\n"
        level.agent_dir = ahead
        return any(k == kind and colour in ("", c) for c, k, _ in SEEN.findall(seen))

    def _observe(self, text: str) -> dict[str, str]:
        self._text = text
        instructions = self._template.format(mission=self.level.mission, actions=", ".join(self.actions))
        return {"text": text, "instructions": instructions}

    def _advise(self, played: int | None) -> str:
        """Tell the bot what was played and ask it again.

        It gives up when a box was destroyed or its plan has come apart. Then put down what is carried and start over
        with a new bot. If that one gives up at once, the target is gone, and turning does no harm.
        """
        for _ in range(2):
            if self._bot is None:
                if self.level.carrying:
                    return "turn left" if self.level.grid.get(*self.level.front_pos) else "drop"
                self._bot, played = _bot(self.level), None
            try:
                advice: Any = self._bot.replan(played)
                if advice != Actions.done:
                    return self.actions[advice]
            except (AssertionError, DisappearedBoxError):
                pass
            self._bot = None
        return "turn left"


def _bot(level: Level) -> BabyAIBot:
    """Minigrid's, but in a sequence it keeps what it picked up: whoever sees it in its hand knows what comes next."""
    bot = BabyAIBot(level)
    if level.task == "pick_up_seq_go_to":
        bot.stack = [part for part in bot.stack if not isinstance(part, DropSubgoal)]
    return bot


def goals(mission: str) -> list[tuple[str, str]]:
    """What a mission needs, in order, as (colour, kind); the colour of a door is "" where it is not told.

    `go to the red ball after you pick up a grey box` needs the box, then the ball; a door needs its key first.
    """
    named = NAMED.findall(mission)
    if named[0][1] == "door":
        return [(named[0][0], "key"), *named]
    return named[::-1] if " after you " in mission else named


def _holds(text: str, wanted: tuple[str, str]) -> bool:
    carried = CARRIED.match(text)
    return carried is not None and carried[2] == wanted[1] and wanted[0] in ("", carried[1])
