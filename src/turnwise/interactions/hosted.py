"""A user played by another model, behind an OpenAI-compatible server (pip install -e '.[openai]')."""

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from turnwise.hosted import HostedModel
from turnwise.interactions.base import BaseInteraction
from turnwise.recipe import parse
from turnwise.seeds import derive
from turnwise.types import Message, Sampling


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    model: str  # ADDRESS#MODEL, such as http://127.0.0.1:8000/v1#Qwen/Qwen2.5-7B-Instruct
    persona: str  # the user's own instructions; {goal} and the like stand for what the sample says
    endings: dict[str, float] = Field(min_length=1)  # a line that ends the dialogue -> the reward it brings
    max_tokens: PositiveInt = 256
    temperature: float = Field(default=1.0, ge=0)
    seed: int = 0


class HostedUser(BaseInteraction):
    """Sees the conversation from the other side: the model's replies are said to it, the user's messages are its own.

    The system message of the agent and what tools said are hidden from it.
    """

    def __init__(self, config: Mapping[str, Any] | None = None):
        super().__init__(config)
        self._settings = parse(self.config, Settings)
        self._hosted = HostedModel(self._settings.model, "config.model")
        self._personas: dict[str, str] = {}

    async def start_interaction(  # type: ignore[override]  # filled by name
        self, instance_id: str, interaction_kwargs: Mapping[str, Any]
    ) -> str:
        def said(name: re.Match[str]) -> str:  # no str.format, which reaches into attributes
            return str(interaction_kwargs.get(name[1], name[0]))

        self._personas[instance_id] = re.sub(r"\{(.+?)\}", said, self._settings.persona)
        return instance_id

    async def generate_response(
        self, instance_id: str, messages: Sequence[Message]
    ) -> tuple[bool, str, float, Mapping[str, Any]]:
        spoken = [message for message in messages if message["role"] in ("user", "assistant")]
        heard = [Message(role="system", content=self._personas[instance_id])]
        # A reply may be calls alone, and what follows it be said in one breath: templates may want roles to alternate.
        told = (one for one in spoken if one["content"] or one is spoken[-1])
        for role, run in groupby(told, key=lambda one: _OTHER[one["role"]]):
            heard.append(Message(role=role, content="\n".join(one["content"] for one in run)))
        asked = self._settings
        seed = derive("user", asked.seed, instance_id, len(spoken))
        text = (await self._hosted.answer(heard, Sampling(asked.max_tokens, asked.temperature, seed=seed))).text.strip()
        ending = next((line.strip() for line in text.splitlines() if line.strip() in asked.endings), None)
        return (False, text, 0.0, {}) if ending is None else (True, text, asked.endings[ending], {})

    async def finalize_interaction(self, instance_id: str) -> None:
        del self._personas[instance_id]


_OTHER: dict[str, Any] = {"user": "assistant", "assistant": "user"}
