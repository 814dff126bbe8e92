"""TextArena's games for one player: Wordle, Hangman, 2048, Sudoku and others (arXiv:2504.11442)."""

from __future__ import annotations

import os
from typing import Any

import gymnasium

from turnwise.envs.global_random import GlobalRandom
from turnwise.envs.phrases import FreeText, positive, texts
from turnwise.optional import optional

_BY_HASH = {"Crosswords", "LogicPuzzle", "WordSearch"}  # they go through the moves of a reply in the order of a set
_PLAIN = (bool, int, float, str, type(None))


class TextArena(gymnasium.Env[dict[str, str], str]):
    """One of TextArena's games for one player, by its id there, such as `Wordle-v0`; `options` are the game's own.

    The reward comes at the end. It is the game's outcome: 1 where it is won, which is success, and otherwise, in most
    games, the share of it that was done. Two invalid moves in a row end a game. TextArena does not tell its limits of
    turns from other ends, and pays an outcome at each of them, so all of them terminate the episode. `max_turns` is
    ours, for games that may never end, and truncates. Some games have one level only.
    """

    def __init__(self, game: str, max_turns: int | None = None, **options: Any):
        self._arena = optional("textarena", "textarena")
        self.max_turns = positive("max_turns", max_turns)
        self.observation_space = texts("text", "instructions")
        self.action_space = FreeText()
        if game.partition("-")[0] in _BY_HASH and os.environ.get("PYTHONHASHSEED", "random") == "random":
            raise ValueError(
                f"game is {game!r}, which Python plays otherwise each time; start it with PYTHONHASHSEED=0"
            )
        try:
            with GlobalRandom(0):
                self._game = self._arena.make(game, **options)
            self._bare = _unwrapped(self._game)
            self._fresh = {name: value for name, value in vars(self._bare).items() if type(value) in _PLAIN}
        except Exception as error:  # words that could not be downloaded, a service without its key, a wrong option
            why = " ".join(str(error).split()).strip("* ")
            raise ValueError(f"game is {game!r}, which TextArena cannot make: {why}") from error
        try:
            self._begin(0)
            alone = isinstance(self._game.state, self._arena.SinglePlayerState)
        except Exception:  # each game has its own way to say that one player is too few
            alone = False
        if not alone:
            raise ValueError(f"game is {game!r}, which is not for one player alone; choose one that is, as Wordle-v0")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, str], dict[str, Any]]:
        super().reset(seed=seed)
        self._begin(int(self.np_random.integers(2**31)))
        return self._observe(), {}

    def step(self, action: str) -> tuple[dict[str, str], float, bool, bool, dict[str, Any]]:
        with self._random:
            ended, _ = self._game.step(action)
        self._turns += 1
        if not ended:
            return self._observe(), 0.0, False, self._turns == self.max_turns, {"success": False}
        rewards, players = self._game.close()
        outcome = float(rewards[0])
        info = {"success": outcome >= 1, "progression": min(max(outcome, 0.0), 1.0)}
        return self._observe(players[0].get("reason", "")), outcome, True, False, info

    def _begin(self, seed: int) -> None:
        self._turns, self._instructions = 0, ""
        self._random = GlobalRandom(seed)
        vars(self._bare).update(self._fresh)  # a game may count on from the one before
        with self._random:
            self._game.reset(num_players=1, seed=seed)

    def _observe(self, reason: str = "") -> dict[str, str]:
        """What the game has said since it was last asked. Its rules become the instructions."""
        kinds = self._arena.ObservationType
        said = self._game.state.get_current_player_observation()
        rules = [message.strip() for _, message, kind in said if kind is kinds.PROMPT]
        news = [message.strip() for _, message, kind in said if kind not in (kinds.PROMPT, kinds.PLAYER_ACTION)]
        self._instructions = "\n".join(rules) or self._instructions
        return {"text": "\n".join([*news, reason]).strip() or "It is your turn.", "instructions": self._instructions}


def _unwrapped(game: Any) -> Any:
    while "env" in vars(game):
        game = game.env
    return game
