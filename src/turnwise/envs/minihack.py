"""MiniHack (arXiv:2109.13202): small worlds made of NetHack's parts, each with one thing to do."""

from __future__ import annotations

from typing import Any

import gymnasium

from turnwise.envs.global_random import GlobalRandom
from turnwise.envs.nle import ENDLESS, SHOWN, NetHack
from turnwise.envs.phrases import one_of, positive
from turnwise.optional import optional

GOALS = {  # by how the name of a task begins
    "Boxoban": "push each boulder (`) onto a fountain ({). Walk against one to push it; none can be pulled.",
    "MazeWalk": "find your way through the maze to the stairs down (>), and step onto them.",
    "CorridorBattle": "fight your way to the stairs down (>). In a corridor, only one monster reaches you at a time.",
    "Corridor": "explore rooms and corridors until you find the stairs down (>), and step onto them.",
    "Quest": "reach the stairs down (>), past lava and monsters on the way. Use what you find.",
}


class MiniHack(NetHack):
    """A `task` of MiniHack by its id without `MiniHack-` and `-v0`, such as `MazeWalk-9x9`; actions are the task's own.

    The reward is 1 at success and 0 otherwise, less 0.01 for a step in which NetHack's time stands still. What ends a
    level without success is death.
    """

    default_action = "north"

    def __init__(self, task: str = "MazeWalk-9x9", max_turns: int | None = 100):
        optional("minihack", "minihack")
        ids = [name for name in gymnasium.registry if name.startswith("MiniHack-") and not name.endswith("Custom-v0")]
        name = f"MiniHack-{one_of('task', task, tuple(name[9:-3] for name in ids))}-v0"
        positive("max_turns", max_turns)
        try:
            with GlobalRandom(0):  # a world of boulders is drawn here, and thrown away at the first reset
                made = gymnasium.make(
                    name,
                    disable_env_checker=True,
                    observation_keys=SHOWN,
                    max_episode_steps=ENDLESS,
                    autopickup=False,
                    fix_moon_phase=True,
                )
        except ModuleNotFoundError as error:
            raise ValueError(
                f"task is {task!r}, whose levels MiniHack does not bring along; "
                "get them with minihack/scripts/download_boxoban_levels.py"
            ) from error
        game: Any = made.unwrapped
        goal = next((goal for begin, goal in GOALS.items() if task.startswith(begin)), f"the task is {task}.")
        super().__init__(game, game.actions, goal, max_turns)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, str], dict[str, Any]]:
        super(NetHack, self).reset(seed=seed)
        with GlobalRandom(int(self.np_random.integers(2**31))):
            return super().reset()

    def won(self, info: dict[str, Any]) -> bool:
        return info["end_status"] == self._game.StepStatus.TASK_SUCCESSFUL
