"""NetHack in words and signs, by the NetHack Learning Environment (arXiv:2006.13760), one key a turn."""

from __future__ import annotations

import string
from typing import Any

import gymnasium

from turnwise.envs.phrases import Phrases, positive, texts
from turnwise.optional import optional

INSTRUCTIONS = """You play NetHack: go down into the dungeon as deep as you can, grow stronger, and stay alive.
You see the map from above; @ is you. Where NetHack asks which thing you mean, answer with its letter, or with y or n.
Your actions: {actions}"""
WAYS = {"N": "north", "E": "east", "S": "south", "W": "west"}
WAYS |= {"NE": "northeast", "SE": "southeast", "SW": "southwest", "NW": "northwest"}


class NLE(gymnasium.Env[dict[str, str], str]):
    """NetHack for the `character` given as role-race-alignment-gender; `@` draws one.

    The last message and the status lines are `text`; map and inventory, which are long, are `cue`: shown only as they
    are now. The reward is what a turn added to NetHack's score, so use the recipe's `environment.reward: native`;
    success is an ascension. Menus and --More-- are answered for the player. `max_turns` truncates an episode; nothing
    else does. The seed decides the dungeon, all luck in it and the phase of the moon.
    """

    default_action = "esc"

    def __init__(self, character: str = "@", max_turns: int | None = 5000):
        nle = optional("nle.env.base", "nle")
        self.max_turns = positive("max_turns", max_turns)
        keys = ("message", "tty_chars", "inv_strs", "inv_letters")
        self._game = nle.NLE(
            character=character,
            observation_keys=keys,
            max_episode_steps=2**62,  # at its own limit it quits the game, and shows nothing that follows
            allow_all_yn_questions=True,
            fix_moon_phase=True,
            render_mode=None,
        )
        self._keys = _keys(nle.nethack)
        self.actions = tuple(self._keys)
        self._instructions = INSTRUCTIONS.format(actions=", ".join(self.actions))
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
        return self._observe(seen), reward, over, truncated, {"success": bool(info["is_ascended"])}

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


def _keys(nethack: Any) -> dict[str, int]:
    """Each action in words, and each letter by itself, with its index among the keys of the game."""
    named = {}
    for index, key in enumerate(nethack.USEFUL_ACTIONS):
        far = "far " if isinstance(key, nethack.CompassDirectionLonger) else ""
        name: str = key.name
        named[far + WAYS.get(name, name.lower())] = index
    letters = {
        chr(key): index for index, key in enumerate(nethack.USEFUL_ACTIONS) if chr(key) in string.ascii_lowercase
    }
    return {**named, **dict(sorted(letters.items()))}


def _read(signs: Any) -> str:
    """The text in an array of bytes that ends with zeros."""
    return signs.tobytes().rstrip(b"\0").decode("latin-1").strip("\0")
