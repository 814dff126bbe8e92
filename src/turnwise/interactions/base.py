"""A simulated user, who speaks after every reply of the model that calls no tool."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.types import Message


class BaseInteraction:
    """Override `generate_response`, and what else the user needs. A method that is not async runs in a thread.

    One object serves all episodes, many at a time: what belongs to an episode is kept under its `instance_id`. Further
    parameters are filled by name from the sample's interaction_kwargs; **kwargs takes them all.
    """

    def __init__(self, config: Mapping[str, Any] | None = None):
        """`config` is the interaction's own part of the file. It may hold `name`, and `timeout_s` of one call."""
        self.config = dict(config or {})
        self.name = self.config.pop("name", None) or type(self).__name__.removesuffix("Interaction").lower()
        self.timeout_s = self.config.pop("timeout_s", 30.0)
        if not isinstance(self.name, str):
            raise ValueError(f"the name of an interaction is {self.name!r}; write a text")
        if not (isinstance(self.timeout_s, int | float) and math.isfinite(self.timeout_s) and self.timeout_s > 0):
            raise ValueError(f"timeout_s is {self.timeout_s!r}; it must be a number of seconds above 0")

    async def start_interaction(self, instance_id: str | None = None) -> str | None:
        """Begin an episode. The id may be replaced by one of the interaction's own."""
        return instance_id

    async def generate_response(
        self, instance_id: str, messages: Sequence[Message]
    ) -> tuple[bool, str, float, Mapping[str, Any]]:
        """Whether the dialogue is over, what the user says, the reward of the model's last turn, figures to log."""
        raise NotImplementedError(f"{type(self).__name__} has no generate_response")

    async def calculate_score(self, instance_id: str) -> float:
        """What the last reply is worth. For `generate_response` to call: nobody else does, so nothing counts twice."""
        return 0.0

    async def finalize_interaction(self, instance_id: str) -> None:
        """End an episode. Called exactly once for each start that came back."""
