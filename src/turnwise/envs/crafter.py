"""Crafter played in words: the agent reads what is around it and plays one of 17 phrases.

Rules, creatures and rewards are those of the crafter package, which is optional. Worlds are drawn here by its formulas,
ten times faster. An episode is a pure function of (arguments, seed, actions). Knows nothing of models, memories or
answer formats.

Coordinates are Crafter's: x grows to the east, y to the south.
"""

from __future__ import annotations

import importlib
import re
import string
from collections import deque
from collections.abc import Iterator
from typing import Any

import gymnasium
from gymnasium import spaces

from turnwise.envs.crafter_world import EDGE
from turnwise.envs.phrases import Phrases, one_of

DIRECTIONS = {"West": (-1, 0), "East": (1, 0), "North": (0, -1), "South": (0, 1)}  # in Crafter's order of actions
ACTIONS = (
    *("Noop", *(f"Move {direction}" for direction in DIRECTIONS), "Do", "Sleep"),
    *("Place Stone", "Place Table", "Place Furnace", "Place Plant"),
    *("Make Wood Pickaxe", "Make Stone Pickaxe", "Make Iron Pickaxe"),
    *("Make Wood Sword", "Make Stone Sword", "Make Iron Sword"),
)
STATUS = {  # by style, of the sleeping and of the dead
    "clean": ("You are asleep.\n", "You died.\n"),
    "balrog": ("You are sleeping, and will not be able take actions until energy is full.\n\n", "You died.\n\n"),
}
VITALS = ("health", "food", "drink", "energy")

GOALS = (  # in the order in which the script works on them; a plant takes too long to ripen for it
    *("collect_wood", "place_table", "make_wood_pickaxe", "make_wood_sword", "collect_sapling", "place_plant"),
    *("collect_drink", "eat_cow", "wake_up", "collect_stone", "place_stone", "make_stone_pickaxe", "make_stone_sword"),
    *("collect_coal", "place_furnace", "collect_iron", "make_iron_pickaxe", "make_iron_sword", "collect_diamond"),
    *("defeat_zombie", "defeat_skeleton"),
)
SOURCES = {"wood": "tree", "sapling": "grass", "drink": "water"}
GROUND = ("grass", "sand", "path")
TOOLS = {"stone": "wood_pickaxe", "coal": "wood_pickaxe", "iron": "stone_pickaxe", "diamond": "iron_pickaxe"}

INSTRUCTIONS = {  # what changes during an episode comes last, so that models read the rest once
    "brief": """Actions: {actions}
Do works on what you face. Stay alive. Reach each goal once.
Goals left: {goals}""",
    "full": """You live in a wild world of square cells, seen from above. Stay alive and reach each goal once.

Your actions:
- Noop: do nothing
- Move West, Move East, Move North, Move South: face that way, then go one step if grass, sand or path lies there. \
Lava lets you in and kills you.
- Do: use the cell you face. A tree gives wood, water is drunk, grass gives a sapling about one time in ten. \
Stone and coal need a wood pickaxe, iron needs a stone pickaxe, diamond needs an iron pickaxe. Zombies, skeletons and \
cows are hit; a dead cow and a ripe plant are eaten.
- Sleep: sleep until your energy is full or something hurts you; only if energy is below 9
- Place Stone: takes 1 stone; onto grass, sand, path, water or lava
- Place Table: takes 2 wood; onto grass, sand or path
- Place Furnace: takes 4 stone; onto grass, sand or path
- Place Plant: takes 1 sapling; onto grass. It ripens slowly, and creatures beside it eat it.
- Make Wood Pickaxe, Make Wood Sword: 1 wood each, beside a table
- Make Stone Pickaxe, Make Stone Sword: 1 wood and 1 stone each, beside a table
- Make Iron Pickaxe, Make Iron Sword: 1 wood, 1 coal and 1 iron each, beside a table and a furnace

You are told what you face, and the nearest thing of each kind within 4 steps west or east and 3 steps north or south. \
You place things into the cell you face, which must be free. Beside means one of the 8 cells around you.

Tips:
- Food, drink and energy fall with time. At 0 they cost health; otherwise health comes back. You die at health 0.
- To use a thing, go next to it and move towards it once more: then you face it.
- Zombies hurt most while you sleep. Swords hit harder.
- If an action changed nothing, do not repeat it: do something else.

Goals left: {goals}""",
}

THE = r"(?:(?:the|an?|some|your) )?"
MOVE = r"(?:(?:move|go|walk|step|head|turn|face)(?: to(?:wards?)?)?(?: the)? )?"
MAKE = rf"(?:make|craft|build|create) {THE}"
PLACE = rf"(?:place|put(?: down)?|set down) {THE}"
NEAR_MISSES = {
    "Noop": r"no op|do nothing|nothing|wait|stay|idle|none",
    **{
        f"Move {direction}": rf"{MOVE}(?:{direction.lower()}(?:wards?)?|{side})(?: (?:one|[1-3]) steps?)?"
        for direction, side in zip(DIRECTIONS, ("left", "right", "up", "down"), strict=True)
    },
    "Do": r"do \(.*|interact(?: with .*)?|(?:do )?(?:"
    rf"(?:chop|cut)(?: down)? {THE}(?:tree|wood)|drink(?: {THE}water)?|eat {THE}(?:ripe )?(?:cow|plant)|"
    rf"(?:collect|gather|get|mine|take) {THE}(?:wood|stone|coal|iron|diamond|water|drink|sapling)|"
    rf"(?:attack|defeat|fight|hit|kill) {THE}(?:zombie|skeleton|cow))",
    "Sleep": r"(?:go to |do )?sleep|rest|take a nap",
    "Place Stone": rf"{PLACE}stone",
    "Place Table": rf"(?:{PLACE}|{MAKE})(?:crafting )?table",
    "Place Furnace": rf"(?:{PLACE}|{MAKE})furnace",
    "Place Plant": rf"(?:{PLACE}|plant {THE})(?:plant|sapling)",
    **{
        f"Make {metal} {tool}": rf"{MAKE}{metal.lower()}(?:en)? ?{tool.lower()}"
        for metal in ("Wood", "Stone", "Iron")
        for tool in ("Pickaxe", "Sword")
    },
}
DIAGONAL = re.compile(rf"{MOVE}(north|south)[ -]?(west|east)")

# The window of 9 x 7 cells around the player, column by column, and the same with the nearest first.
WINDOW = [(x, y) for x in range(-4, 5) for y in range(-3, 4) if (x, y) != (0, 0)]
NEAREST_FIRST = sorted(WINDOW, key=lambda offset: abs(offset[0]) + abs(offset[1]))


def _steps(k: int) -> str:
    return f"{k} step{'s' * (k > 1)}"


def _way(x: int, y: int) -> list[tuple[int, str]]:
    """How far and whereto an offset leads: (-1, 2) is 2 south, 1 west."""
    parts = [(abs(y), "north" if y < 0 else "south"), (abs(x), "west" if x < 0 else "east")]
    return [(k, direction) for k, direction in parts if k]


OFFSETS = {offset: " and ".join(f"{_steps(k)} {direction}" for k, direction in _way(*offset)) for offset in WINDOW}


def describe(cells: dict[tuple[int, int], str], facing: tuple[int, int], status: str) -> str:
    """What is faced, then the nearest of each kind, nearest first; `cells` gives a kind for each offset in sight."""
    nearest: dict[str, str] = {}
    for offset in NEAREST_FIRST:
        nearest.setdefault(cells[offset], OFFSETS[offset])
    return "\n".join([f"{status}You face {cells[facing]}.", *(f"{kind} {offset}" for kind, offset in nearest.items())])


def describe_balrog(cells: dict[tuple[int, int], str], facing: tuple[int, int], status: str) -> str:
    """The same in BALROG's words: kinds in the order of a scan by columns, distances along both axes together."""
    nearest: dict[str, str] = {}
    for x, y in NEAREST_FIRST:
        way = f"{_steps(abs(x) + abs(y))} to your {'-'.join(direction for _, direction in _way(x, y))}"
        nearest.setdefault(cells[x, y], way)
    lines = [f"- {kind} {nearest[kind]}" for kind in dict.fromkeys(cells[offset] for offset in WINDOW) if kind != EDGE]
    seen = "\n".join(["You see:", *lines]) if lines else "You see nothing away from you."
    faced = "nothing" if cells[facing] == EDGE else cells[facing]
    return f"{status}{seen}\n\nYou face {faced} at your front."


def carried(inventory: dict[str, int]) -> str:
    things = [f"{count} {item.replace('_', ' ')}" for item, count in inventory.items() if count and item not in VITALS]
    vitals = ", ".join(f"{vital} {inventory[vital]}/9" for vital in VITALS)
    return f"{vitals.capitalize()}.\nYou carry {', '.join(things) or 'nothing'}."


def carried_balrog(inventory: dict[str, int]) -> str:
    vitals = [f"- {vital}: {inventory[vital]}/9" for vital in VITALS]
    things = [f"- {item}: {count}" for item, count in inventory.items() if count and item not in VITALS]
    lines = ["Your inventory:", *things] if things else ["You have nothing in your inventory."]
    return "\n".join(["Your status:", *vitals, "", *lines])


class CrafterText(gymnasium.Env[dict[str, Any], str]):
    """Crafter as text, with a new world at each reset.

    A turn is one step of the game, except that sleep goes on until the player wakes: its rewards are summed, its steps
    counted. The reward is the game's: 1 for a step that reaches a goal for the first time, and a tenth of each change
    of health. Only death terminates an episode. After `length` steps it is truncated.
    """

    actions = ACTIONS
    default_action = "Noop"

    def __init__(self, length: int = 2000, style: str = "clean", instructions: str = "brief"):
        if not isinstance(length, int) or length < 1:
            raise ValueError(f"length is {length!r}, but must be a whole number of steps, at least 1.")
        self.length = length
        self.style = one_of("style", style, tuple(STATUS))
        self._template = INSTRUCTIONS[one_of("instructions", instructions, tuple(INSTRUCTIONS))]
        self.game = open_game()
        text = spaces.Text(max_length=4096, charset=string.printable)
        self.observation_space = spaces.Dict({"text": text, "cue": text, "instructions": text})
        self.action_space = Phrases(self.actions)
        self._played = 0  # steps of the game
        self._found: dict[str, str] = {}  # what the script's search found so far, and the first move towards it
        self._search: Iterator[tuple[str, str]] = iter(())  # the rest of it

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, str], dict[str, Any]]:
        super().reset(seed=seed)
        self.game.begin(int(self.np_random.integers(2**32)))
        self._played = 0
        return self._observe(), self._info()

    def step(self, action: str) -> tuple[dict[str, str], float, bool, bool, dict[str, Any]]:
        reward, died = self._tick(self.actions.index(one_of("action", action, self.actions)))
        while self.game.player.sleeping and not died and self._played < self.length:
            earned, died = self._tick(self.actions.index("Noop"))
            reward += earned
        return self._observe(), reward, died, not died and self._played >= self.length, self._info()

    def render(self) -> Any:
        """What a player of the original sees: an RGB image of the surroundings and the inventory."""
        return self.game.render((576, 576))

    def translate(self, said: str) -> str | None:
        """The action that a near-miss means: "chop the tree" is "Do"; None if it means none.

        A diagonal becomes the first of its two moves that is free, else its first. `said` comes in lower case, with
        single spaces, without quotes, underscores and end punctuation.
        """
        if diagonal := DIAGONAL.fullmatch(said):
            ways = [way.capitalize() for way in diagonal.groups()]
            free = (way for way in ways if self.game.player.is_free(self._cell(DIRECTIONS[way]), GROUND))
            return f"Move {next(free, ways[0])}"
        return next((action for action, pattern in NEAR_MISSES.items() if re.fullmatch(pattern, said)), None)

    def expert(self) -> str:
        """What a simple script would do now. It knows the whole map, and reaches most goals but not the rarest."""
        return next(self._plans())[0]

    def thought(self) -> str:
        """What the script wants next and where it is, as far as the text in sight tells.

        "I want to collect wood. The nearest tree is 2 steps north." or "I am thirsty. I see no water."
        """
        return next(self._plans())[1]

    def _tick(self, index: int) -> tuple[float, bool]:
        _, reward, died, _ = self.game.step(index)
        self._played += 1
        return float(reward), bool(died)

    def _cell(self, offset: tuple[int, int]) -> tuple[int, int]:
        x, y = self.game.player.pos
        return int(x) + offset[0], int(y) + offset[1]

    def _look(self) -> dict[tuple[int, int], str]:
        return {offset: self.game.kind(self._cell(offset)) for offset in WINDOW}

    def _observe(self) -> dict[str, str]:
        player, cells = self.game.player, self._look()
        status = STATUS[self.style][0 if player.sleeping else 1] if player.sleeping or player.health <= 0 else ""
        if self.style == "balrog":
            cells = {offset: kind.removeprefix("ripe ") for offset, kind in cells.items()}
            text, cue = describe_balrog(cells, player.facing, status), carried_balrog(player.inventory)
        else:
            text, cue = describe(cells, player.facing, status), carried(player.inventory)
        left = [name.replace("_", " ") for name, count in player.achievements.items() if not count]
        goals = ", ".join(left) or "none"
        instructions = self._template.format(actions=", ".join(self.actions), goals=goals)
        return {"text": text, "cue": cue, "instructions": instructions}

    def _info(self) -> dict[str, Any]:
        """There is no success to speak of: an episode ends by death or by time. What counts is the progression."""
        counts = dict(self.game.player.achievements)
        progression = sum(count > 0 for count in counts.values()) / len(counts)
        steps_left = self.length - self._played
        figures = {f"achievements/{name}": count > 0 for name, count in counts.items()}
        told = {"success": None, "progression": progression, "figures": figures}
        return {**told, "achievements": counts, "steps_left": steps_left}

    # The script: a list of wishes, the first that can be worked on wins

    def _plans(self) -> Iterator[tuple[str, str]]:
        """Pairs (action, thought): a fight, an urgent need, then goals in order, as far as they can be worked on."""
        self._found, self._search = {}, self._explore()
        player, cells = self.game.player, self._look()
        inventory, dangers = player.inventory, [kind for kind in ("zombie", "skeleton") if kind in cells.values()]
        for offset in DIRECTIONS.values():
            if cells[offset] in dangers:
                yield from self._seek(cells[offset], "I must fight.", "Do")
        if inventory["drink"] < 4:
            yield from self._seek("water", "I am thirsty.", "Do")
        if inventory["food"] < 4:
            yield from self._seek("cow", "I am hungry.", "Do")
        if inventory["energy"] < 3 and not dangers:
            yield "Sleep", "I am tired, and no danger is in sight."
        for goal in GOALS:
            if not player.achievements[goal] and (goal != "wake_up" or (inventory["energy"] < 9 and not dangers)):
                yield from self._work_on(goal)
        yield "Noop", "I see nothing that I could do."

    def _work_on(self, goal: str) -> Iterator[tuple[str, str]]:
        """The next action towards a goal: gather what it needs, go where it must be done, do it."""
        inventory = self.game.player.inventory
        verb, thing = goal.split("_", 1)
        wish = f"I want to {goal.replace('_', ' ')}."
        if verb == "wake":
            yield "Sleep", f"{wish} My energy is not full, and no danger is in sight."
        elif verb in ("eat", "defeat"):
            yield from self._seek(thing, wish, "Do")
        elif verb == "collect":
            tool = TOOLS.get(thing, "")
            if tool and not inventory[tool]:
                yield from self._work_on(f"make_{tool}")
            else:
                yield from self._seek(SOURCES.get(thing, thing), wish, "Do")
        else:
            recipe = self.game.recipe(verb, thing)
            spare = 3 if goal == "place_table" else 0  # the wood of the first tools, as trees are near
            missing = next((item for item, count in recipe["uses"].items() if inventory[item] < count + spare), None)
            action = f"{verb} {thing.replace('_', ' ')}".title()
            if missing:
                yield from self._work_on(f"collect_{missing}")
            elif verb == "place":
                yield from self._seek("grass" if thing == "plant" else "ground", wish, action)
            else:
                away = [place for place in recipe["nearby"] if not self.game.beside(place)]
                if not away:
                    yield action, f"{wish} I have what it takes."
                elif away == ["table"] and "furnace" in recipe["nearby"]:
                    yield from self._work_on("place_table")  # a new one, as the furnace may stand far from the old
                else:
                    yield from self._seek(away[-1], wish, "")

    def _seek(self, kind: str, wish: str, action: str) -> Iterator[tuple[str, str]]:
        """Go to the nearest of a kind (through stone, with a pickaxe), face it, act. Nothing if it is out of reach."""
        first = self._first_move(kind)
        if first is None:
            return
        player, cells = self.game.player, self._look()
        if _is(cells[player.facing], kind):
            place = f"I face {cells[player.facing]}."
        else:
            near = next((offset for offset in NEAREST_FIRST if _is(cells[offset], kind)), None)
            place = f"The nearest {cells[near]} is {OFFSETS[near]}." if near else f"I see no {kind}."
        if action and _is(cells[player.facing], kind):
            yield action, f"{wish} {place}"
        elif player.facing == DIRECTIONS[first] and cells[player.facing] == "stone":
            yield "Do", f"{wish} {place}"
        else:
            yield f"Move {first}", f"{wish} {place}"

    def _first_move(self, kind: str) -> str | None:
        """The first move on a shortest way to the nearest of a kind; None if it is out of reach."""
        while kind not in self._found:
            found = next(self._search, None)
            if found is None:
                return None
            self._found.setdefault(*found)
        return self._found[kind]

    def _explore(self) -> Iterator[tuple[str, str]]:
        """Every kind within reach with the first move towards it, nearest first, by breadth-first search."""
        here, passable = self._cell((0, 0)), GROUND + ("stone",) * bool(self.game.player.inventory["wood_pickaxe"])
        queue, reached = deque([(here, "")]), {here}
        while queue:
            (x, y), first = queue.popleft()
            for direction, (right, down) in DIRECTIONS.items():
                place = x + right, y + down
                if place not in reached:
                    reached.add(place)
                    kind = self.game.kind(place)
                    yield kind, first or direction
                    if kind in GROUND:
                        yield "ground", first or direction
                    if kind in passable:
                        queue.append((place, first or direction))


def _is(found: str, kind: str) -> bool:
    return found in GROUND if kind == "ground" else found == kind


def open_game() -> Any:
    try:
        return importlib.import_module("turnwise.envs.crafter_game").Game()
    except ImportError as error:
        raise ValueError("Crafter is not installed: pip install -e '.[crafter]'") from error
