"""A user who knows the answer to a problem of GSM8K, and sends the model back until it is right."""

from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.interactions.base import BaseInteraction
from turnwise.rewards.gsm8k import gsm8k
from turnwise.types import Message

_RIGHT = "Your answer is right."
_WRONG = "Your answer is wrong. Look for the mistake and try again."


class Gsm8kInteraction(BaseInteraction):
    """The reward is 1 for the right answer and 0 for others. `method` is how answers are read: strict or flexible."""

    def __init__(self, config: Mapping[str, Any] | None = None):
        super().__init__(config)
        self._method = self.config.pop("method", "strict")
        if self._method not in ("strict", "flexible"):
            raise ValueError(f"method is {self._method!r}; there are 'strict' and 'flexible'")
        if self.config:
            raise ValueError(f"Gsm8kInteraction does not take {', '.join(self.config)}; it has name, timeout_s, method")
        self._truths: dict[str, Any] = {}
        self._replies: dict[str, str] = {}

    async def start_interaction(  # type: ignore[override]  # filled by name
        self, instance_id: str, ground_truth: Any, query: str = ""
    ) -> str:
        """`query` is the problem, which the model has read; other users may want it."""
        self._truths[instance_id], self._replies[instance_id] = ground_truth, ""
        return instance_id

    async def generate_response(
        self, instance_id: str, messages: Sequence[Message]
    ) -> tuple[bool, str, float, Mapping[str, Any]]:
        self._replies[instance_id] = messages[-1]["content"]
        score = await self.calculate_score(instance_id)
        return (True, _RIGHT, score, {}) if score == 1 else (False, _WRONG, score, {})

    async def calculate_score(self, instance_id: str) -> float:
        return gsm8k(self._replies[instance_id], self._truths[instance_id], self._method)["score"]

    async def finalize_interaction(self, instance_id: str) -> None:
        del self._truths[instance_id], self._replies[instance_id]
