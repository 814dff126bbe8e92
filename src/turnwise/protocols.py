"""What plugs in. Anything with these methods fits: no base class, no registration, named by a dotted path.

An environment is a Gymnasium environment whose observation is text, or a dict with `text` and, where wanted,
`cue` and `instructions`. It may also have `actions` (the legal action texts), `default_action`, and
`translate(said) -> action | None` for near-misses.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from turnwise.types import Action, Generation, Message, Observation, Sampling, Turn

if TYPE_CHECKING:
    import torch

    from turnwise.batch import Streams

Ask = Callable[[list[Message]], Awaitable[str]]


class Memory(Protocol):
    """Chooses what the model sees next. Holds no state: what it remembers is in the turns."""

    span: int | None  # how many past turns of the environment it reads; None: all of them

    async def prompt(self, past: Sequence[Turn], index: int, observation: Observation, ask: Ask) -> list[Message]:
        """The messages of the next turn.

        `past` holds the last `span` turns of this episode (with those that the memory asked for among them),
        `index` counts the environment's turns so far. `await ask(messages)` consults the model: question and
        answer become a turn of reward 0, which is trained like any other.
        """
        ...


class ActionParser(Protocol):
    """The answer format: tells the model how to answer, and reads the answer.

    It is made with `actions`, the legal ones, and `default`, which is played instead of an invalid one. A near-miss is
    invalid to it: the environment is asked for its meaning afterwards.
    """

    cue: str  # closes the current observation

    def parse(self, text: str) -> Action: ...

    def format(self, thought: str, action: str) -> str:
        """A reply in the format; an empty thought leaves the reasoning out."""
        ...


class Codec(Protocol):
    """Turns messages into the ids that an engine reads, and the ids that it sampled into text."""

    def prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The ids of the conversation, up to where the model's next reply begins."""
        ...

    def text(self, token_ids: Sequence[int]) -> str: ...

    def tokens_from(self, token_ids: Sequence[int], start: int) -> int:
        """How many of the last ids spell the text from character `start` on."""
        ...


class Engine(Protocol):
    """Token ids in, token ids and log-probs out. Requests that wait together are generated together."""

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, request_id: str = "") -> Generation:
        """Requests of one episode share a `request_id`: their prompts begin alike, so one server should read them."""
        ...

    def load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Sample from these weights from now on."""
        ...


class Advantage(Protocol):
    """Assigns credit along time: streams with values -> advantages and returns, one number a sampled token."""

    def __call__(self, streams: Streams) -> tuple[torch.Tensor, torch.Tensor]: ...


class Tracker(Protocol):
    """Receives the figures of a step."""

    def log(self, metrics: Mapping[str, float], step: int) -> None: ...
