"""NetHack in words and signs, by the NetHack Learning Environment (arXiv:2006.13760), one key a turn."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import gymnasium

from turnwise.envs.phrases import Phrases, positive, texts
from turnwise.optional import optional

INSTRUCTIONS = """You play NetHack: {goal}
You see the map from above; @ is you. Where NetHack asks which thing you mean, answer with its letter, or with y or n.
Your actions: {actions}"""
GOAL = "go down into the dungeon as deep as you can, grow stronger, and stay alive."
WAYS = {"N": "north", "E": "east", "S": "south", "W": "west"}
WAYS |= {"NE": "northeast", "SE": "southeast", "SW": "southwest", "NW": "northwest"}
SHOWN = ("message", "tty_chars", "inv_strs", "inv_letters")  # what a game must be asked to show
ENDLESS = 2**62  # steps: at a limit of its own, a game quits, and shows nothing that follows


class NetHack(gymnasium.Env[dict[str, str], str]):
    """A game of NetHack's family.

    The last message and the status lines are `text`; map and inventory, which are long, are `cue`: shown only as they
    are now. Menus and --More-- are answered for the player. `max_turns` truncates an episode; nothing else does. The
    seed decides the dungeon, all luck in it and the phase of the moon.
    """

    def __init__(self, game: Any, keys: Sequence[Any], goal: str, max_turns: int | None):
        """`keys` are those of the game, in the order of their indices."""
        self._game = game
        self.max_turns = positive("max_turns", max_turns)
        self._keys = _named(keys)
        self.actions = tuple(self._keys)
        self._instructions = INSTRUCTIONS.format(goal=goal, actions=", ".join(self.actions))
        self.observation_space = texts("text", "cue", "instructions")
        self.action_space = Phrases(self.actions)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, str], dict[str, Any]]:
        super().reset(seed=seed)
        core, display = (int(number) for number in self.np_random.integers(2**31, size=2))
        self._game.seed(core, display, reseed=False)
        seen, _ = self._game.reset()
        self._turns = 0
        return self._observe(seen), {}

    def step(self, action: str) -> tuple[dict[str, str], float, bool, bool, dict[str, Any]]:
        seen, reward, over, _, info = self._game.step(self._keys[action])
        self._turns += 1
        truncated = not over and self._turns == self.max_turns
        return self._observe(seen), reward, over, truncated, {"success": self.won(info)}

    def won(self, info: dict[str, Any]) -> bool:
        """Whether the game, by what it told at a step, is won."""
        return bool(info["is_ascended"])

    def close(self) -> None:
        self._game.close()

    def _observe(self, seen: dict[str, Any]) -> dict[str, str]:
        screen = [_read(row).rstrip() for row in seen["tty_chars"]]
        news = [line for line in (_read(seen["message"]), *screen[-2:]) if line]
        things = [
            f"{_read(sign)}: {_read(what)}" for sign, what in zip(seen["inv_letters"], seen["inv_strs"], strict=True)
        ]
        carried = [thing for thing in things if thing != ": "]
        return {
            "text": "\n".join(news) or "The game is over.",
            "cue": "\n".join(["Map:", *filter(None, screen[1:-2]), "You carry:", *carried]),
            "instructions": self._instructions,
        }


class NLE(NetHack):
    """NetHack for the `character` given as role-race-alignment-gender; `@` draws one.

    The reward is what a turn added to NetHack's score, so use the recipe's `environment.reward: native`; success is an
    ascension.
    """

    default_action = "esc"

    def __init__(self, character: str = "@", max_turns: int | None = 5000):
        nle = optional("nle.env.base", "nle")
        positive("max_turns", max_turns)
        game = nle.NLE(
            character=character,
            observation_keys=SHOWN,
            max_episode_steps=ENDLESS,
            allow_all_yn_questions=True,
            fix_moon_phase=True,
            render_mode=None,
        )
        super().__init__(game, nle.nethack.USEFUL_ACTIONS, GOAL, max_turns)


def _named(keys: Sequence[Any]) -> dict[str, int]:
    """Each key in words, and, where there are more than ways to go, each letter by itself; with its index."""
    named, kinds = {}, set[str]()
    for index, key in enumerate(keys):
        kinds.add(type(key).__name__)
        far = "far " if type(key).__name__.endswith("Longer") else ""
        name: str = key.name
        named[far + WAYS.get(name, name.lower())] = index
    if all(kind.startswith("Compass") for kind in kinds):
        return named
    letters = {chr(key): index for index, key in enumerate(keys) if chr(key) in string.ascii_lowercase}
    return {**named, **dict(sorted(letters.items()))}


def _read(signs: Any) -> str:
    """The text in an array of bytes that ends with zeros."""
    return signs.tobytes().rstrip(b"\0").decode("latin-1").strip("\0")
