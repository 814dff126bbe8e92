"""A model behind an OpenAI-compatible server, spoken to in messages (pip install -e '.[openai]')."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from turnwise.loopback import spare_loopback
from turnwise.types import Message, Sampling


@dataclass(frozen=True, slots=True)
class HostedReply:
    text: str
    finish_reason: Literal["stop", "length"]


class HostedModel:
    """The model at `ADDRESS#MODEL`, such as `http://127.0.0.1:8000/v1#Qwen/Qwen2.5-3B-Instruct`.

    The key is read from OPENAI_API_KEY, where the server wants one. The client tries again by itself when the server
    is busy or the line breaks; after that every failure is a ValueError of one sentence.
    """

    def __init__(self, address: str, key: str = "model.path"):
        """`key` is where the user wrote the address, for the sentence that says it is wrong."""
        self.url, _, self.model = address.partition("#")
        parts = urlsplit(self.url)
        if parts.username or parts.password or parts.query:
            raise ValueError(
                f"the address of the server {parts.hostname} holds a user name, a password or a query; "
                "give the bare address, and the key in the environment variable OPENAI_API_KEY"
            )
        try:
            parts.port  # noqa: B018
        except ValueError as error:
            raise ValueError(f"{key} is {address!r}, whose port is none ({error})") from error
        if not self.model:
            raise ValueError(f"{key} is {address!r}, which names no model; write it as {self.url}#MODEL")
        try:
            import openai
        except ImportError as error:
            raise ValueError("a hosted model is asked by the client of OpenAI: pip install -e '.[openai]'") from error
        spare_loopback()
        self._openai = openai
        self._client: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None  # whose connections the client holds

    async def answer(self, messages: Sequence[Message], sampling: Sampling) -> HostedReply:
        """Without filters: top-p and top-k are not sent."""
        try:
            answer = await self._connected().chat.completions.create(
                model=self.model,
                messages=list(messages),
                max_tokens=sampling.max_tokens,
                temperature=sampling.temperature,
                seed=sampling.seed % 2**31,  # some servers take no larger one
            )
            choice = answer.choices[0]
        except self._openai.APIConnectionError as error:
            raise ValueError(f"the server at {self.url} does not answer ({error}); is it running there?") from error
        except self._openai.APIStatusError as error:
            why = " ".join(str(error.message).split())[:300]
            raise ValueError(f"the server at {self.url} refused to play {self.model}: {why}") from error
        except (self._openai.OpenAIError, IndexError, TypeError, AttributeError) as error:
            raise ValueError(f"the server at {self.url} does not speak the chat API of OpenAI: {error!r}") from error
        return HostedReply(choice.message.content or "", "length" if choice.finish_reason == "length" else "stop")

    def _connected(self) -> Any:
        """The client of this event loop: connections do not outlive theirs."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            key = os.environ.get("OPENAI_API_KEY") or "none"
            self._client, self._loop = self._openai.AsyncOpenAI(base_url=self.url, api_key=key), loop
        return self._client
