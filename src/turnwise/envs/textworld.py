"""TextWorld's text adventures: treasure hunter, coin collector and the cooking game (arXiv:1806.11532)."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import gymnasium

from turnwise.envs.phrases import FreeText, one_of, positive, texts
from turnwise.optional import optional

# TextWorld's name of each task, and how hard it is unless the recipe says otherwise. Names of tasks are BALROG's.
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "treasure_hunter": ("tw-treasure_hunter", {"level": 10}),
    "coin_collector": ("tw-coin_collector", {"level": 20}),
    "the_cooking_game": (
        "tw-cooking",
        {"recipe": 3, "take": 3, "go": 6, "open": True, "cook": True, "cut": True, "drop": False, "split": None},
    ),
}
INSTRUCTIONS = """You play a text adventure. Say what to do in a few words, such as: look, inventory, go north,
open door, take key from table, examine cookbook, unlock chest with key, cook apple with stove, prepare meal, eat meal.

{objective}"""


class TextWorld(gymnasium.Env[dict[str, str], str]):
    """One of three adventures, made anew from the seed at each reset; `options` are TextWorld's settings of the task.

    The reward is what a turn added to the game's score, progression the share of the highest score, success a game
    won. A lost game terminates, `max_turns` truncates. The instructions name the goal, not the way to it. To make and
    compile a game takes seconds, and far longer in the hardest levels: mind `environment.timeout_s`.
    """

    default_action = "help"

    def __init__(self, task: str = "treasure_hunter", max_turns: int | None = 80, **options: Any):
        optional("textworld.challenges", "textworld")
        self._textworld = optional("textworld", "textworld")
        self._challenge, usual = TASKS[one_of("task", task, tuple(TASKS))]
        for key in options:
            one_of(f"a setting of {task}", key, tuple(usual))
        self.options = {**usual, **options}
        self.max_turns = positive("max_turns", max_turns)
        self.observation_space = texts("text", "instructions")
        self.action_space = FreeText()
        self._game: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, str], dict[str, Any]]:
        super().reset(seed=seed)
        self.close()
        self._folder = tempfile.TemporaryDirectory(prefix="textworld-")  # the game is read from it as long as it lives
        self._game = self._compile(Path(self._folder.name) / "game.z8")
        state = self._game.reset()
        self._turns, self._score, self._best = 0, 0, state.max_score
        self._instructions = INSTRUCTIONS.format(objective=state.objective)
        return self._observe(state.description), {}

    def step(self, action: str) -> tuple[dict[str, str], float, bool, bool, dict[str, Any]]:
        state, score, over = self._game.step(action.strip().partition("\n")[0])  # two lines would be two commands
        self._turns += 1
        reward, self._score = float(score - self._score), score
        info = {"success": bool(state.won), "progression": 1.0 if state.won else score / self._best}
        said = state.feedback.rpartition("\n>")[0] or state.feedback  # what follows the last prompt is a status line
        return self._observe(said), reward, over, not over and self._turns == self.max_turns, info

    def close(self) -> None:
        if self._game is not None:
            self._game.close()
            self._folder.cleanup()
            self._game = None

    def _compile(self, path: Path) -> Any:
        """Draw a game; one whose map holds no quest long enough is drawn again."""
        make = self._textworld.challenges.CHALLENGES[self._challenge][1]
        wanted = self._textworld.EnvInfos(description=True, objective=True, max_score=True, score=True, won=True)
        while True:
            options = self._textworld.GameOptions()
            options.path = str(path)
            options.seeds = {key: int(self.np_random.integers(2**31)) for key in ("map", "objects", "quest", "grammar")}
            options.grammar.only_last_action = True
            settings = {**self.options, "recipe_seed": int(self.np_random.integers(2**31))}
            try:
                game = make(settings, options)
            except self._textworld.generator.QuestGenerationError:
                continue
            return self._textworld.start(self._textworld.generator.compile_game(game, options), wanted)

    def _observe(self, said: str) -> dict[str, str]:
        return {"text": said.strip(), "instructions": self._instructions}
