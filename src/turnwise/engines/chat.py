"""A model behind an OpenAI-compatible server: spoken to in messages, since its tokens are unknown here.

The "ids" of a conversation are the bytes of its JSON, those of a reply the bytes of its text and an end mark. So the
slots that play a model of ours play a hosted one too.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.hosted import HostedModel
from turnwise.types import Generation, Message, Sampling

_END = (0,)  # closes a reply, so that none is empty


def is_address(path: str) -> bool:
    """Whether a model's path is the address of a server."""
    return path.startswith(("http://", "https://"))


class Conversation:
    """Messages to bytes and back; a reply is never tokenised, so nothing must be spliced."""

    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> tuple[int, ...]:
        if tools:
            raise ValueError("a hosted model is shown no tools here; play it without them, or load its weights")
        plain = [{"role": message["role"], "content": message["content"]} for message in messages]
        return tuple(json.dumps(plain).encode())

    def reply(self, text: str) -> tuple[int, ...]:
        """The ids of a reply."""
        return *text.encode(errors="replace"), *_END

    def text(self, token_ids: Sequence[int]) -> str:
        return bytes(token_ids[: -len(_END)]).decode()

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(text.encode(errors="replace"))

    def markup(self, texts: Sequence[str]) -> dict[int, str]:
        """None: all that is known of a reply is its text."""
        return {}

    def ends_with(self, token_ids: Sequence[int], text: str) -> bool:
        """No: the server keeps its template to itself."""
        return False

    def tokens_from(self, token_ids: Sequence[int], start: int) -> int:
        """How many of the last ids spell the text from character `start` on, the end mark included."""
        return len(self.reply(self.text(token_ids)[start:]))


class ChatEngine:
    """A hosted model as an engine: `ADDRESS#MODEL`, as HostedModel takes it."""

    def __init__(self, address: str):
        self._hosted = HostedModel(address)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, request_id: str = "") -> Generation:
        """Without log-probs, and without filters: evaluation samples from the whole distribution."""
        answer = await self._hosted.answer(json.loads(bytes(prompt_ids)), sampling)
        return Generation(Conversation().reply(answer.text), (), answer.finish_reason, 0)

    def load(self, weights: Mapping[str, Any], version: int) -> None:
        raise ValueError(f"the model at {self._hosted.url} cannot be trained: its weights are not here")
