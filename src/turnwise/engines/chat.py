"""A model behind an OpenAI-compatible server: spoken to in messages, since its tokens are unknown here.

The "ids" of a conversation are the bytes of its JSON, those of a reply the bytes of its text and an end mark. So the
slots that play a model of ours play a hosted one too.
"""

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from turnwise.types import Generation, Message, Sampling

_END = (0,)  # closes a reply, so that none is empty


def is_address(path: str) -> bool:
    """Whether a model's path is the address of a server."""
    return path.startswith(("http://", "https://"))


class Conversation:
    """Messages to bytes and back; a reply is never tokenised, so nothing must be spliced."""

    def prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        plain = [{"role": message["role"], "content": message["content"]} for message in messages]
        return tuple(json.dumps(plain).encode())

    def reply(self, text: str) -> tuple[int, ...]:
        """The ids of a reply."""
        return *text.encode(errors="replace"), *_END

    def text(self, token_ids: Sequence[int]) -> str:
        return bytes(token_ids[: -len(_END)]).decode()

    def tokens_from(self, token_ids: Sequence[int], start: int) -> int:
        """How many of the last ids spell the text from character `start` on, the end mark included."""
        return len(self.reply(self.text(token_ids)[start:]))


class ChatEngine:
    """Asks the server at `ADDRESS#MODEL`, such as `http://127.0.0.1:8000/v1#Qwen/Qwen2.5-3B-Instruct`.

    The key is read from OPENAI_API_KEY, where the server wants one. The client tries again by itself when the server
    is busy or the line breaks; after that every failure is a ValueError of one sentence.
    """

    def __init__(self, address: str):
        self.url, _, self.model = address.partition("#")
        parts = urlsplit(self.url)
        if parts.username or parts.password or parts.query:
            raise ValueError(
                f"the address of the server {parts.hostname} holds a user name, a password or a query; "
                "give the bare address, and the key in the environment variable OPENAI_API_KEY"
            )
        if not self.model:
            raise ValueError(f"model.path is {address!r}, which names no model; write it as {self.url}#MODEL")
        try:
            import openai
        except ImportError as error:
            raise ValueError("a hosted model is asked by the client of OpenAI: pip install turnwise[openai]") from error
        self._openai = openai
        self._client: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None  # whose connections the client holds

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, request_id: str = "") -> Generation:
        """Without log-probs, and without filters: evaluation samples from the whole distribution."""
        try:
            answer = await self._connected().chat.completions.create(
                model=self.model,
                messages=json.loads(bytes(prompt_ids)),
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
        ids = Conversation().reply(choice.message.content or "")
        return Generation(ids, (), "length" if choice.finish_reason == "length" else "stop", 0)

    def load(self, weights: Mapping[str, Any], version: int) -> None:
        raise ValueError(f"the model at {self.url} cannot be trained: its weights are not here")

    def _connected(self) -> Any:
        """The client of this event loop: connections do not outlive theirs."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            key = os.environ.get("OPENAI_API_KEY") or "none"
            self._client, self._loop = self._openai.AsyncOpenAI(base_url=self.url, api_key=key), loop
        return self._client
