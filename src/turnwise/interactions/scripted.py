"""A user who says what was written down beforehand, whatever the model says."""

from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.interactions.base import BaseInteraction
from turnwise.types import Message


class Scripted(BaseInteraction):
    """`script` is a list of texts, from the config or from the sample; after the last the dialogue is over."""

    def __init__(self, config: Mapping[str, Any] | None = None):
        super().__init__(config)
        self._script = _lines(self.config.pop("script", []))
        if self.config:
            raise ValueError(f"Scripted does not take {', '.join(self.config)}; it has name, timeout_s and script")
        self._left: dict[str, list[str]] = {}

    async def start_interaction(self, instance_id: str, script: Any = None) -> str:  # type: ignore[override]
        self._left[instance_id] = list(self._script if script is None else _lines(script))
        return instance_id

    async def generate_response(
        self, instance_id: str, messages: Sequence[Message]
    ) -> tuple[bool, str, float, Mapping[str, Any]]:
        left = self._left[instance_id]
        return (False, left.pop(0), 0.0, {}) if left else (True, "", 0.0, {})

    async def finalize_interaction(self, instance_id: str) -> None:
        del self._left[instance_id]


def _lines(script: Any) -> list[str]:
    if not isinstance(script, list) or not all(isinstance(line, str) for line in script):
        raise ValueError(f"the script is {script!r:.80}; write a list of texts")
    return script
