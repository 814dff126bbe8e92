"""BabyAI's levels, which end soon."""

from typing import Any

from turnwise.envs.babyai import BabyAIText


class Short(BabyAIText):
    def reset(self, **said: Any) -> tuple[dict[str, str], dict[str, Any]]:
        first = super().reset(**said)
        self.level.max_steps = 8
        return first
