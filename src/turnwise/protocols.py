"""What plugs in. Anything with these methods fits: no base class, no registration, named by a dotted path.

An environment is a Gymnasium environment whose observation is text, or a dict with `text` and, where wanted,
`cue` and `instructions`. It may also have `actions` (the legal action texts), `default_action`,
`translate(said) -> action | None` for near-misses, and `expert() -> action`, which evaluation can let play.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from turnwise.types import Action, Ending, Generation, Message, Observation, Sample, Sampling, Turn

if TYPE_CHECKING:
    import torch

    from turnwise.agents.shared import Shared
    from turnwise.batch import Estimate, Streams
    from turnwise.config import Config
    from turnwise.traces.entries import Entry

Ask = Callable[[list[Message]], Awaitable[str]]


class Tell(Protocol):
    """Says what came of a span: its outputs, and anything else about it, all of it JSON."""

    def __call__(self, outputs: Any, **attributes: Any) -> None: ...


Spans = Callable[[str, str, Any], AbstractContextManager[Tell]]  # kind, name and inputs of a span


class Memory(Protocol):
    """Chooses what the model sees next. Holds no state: what it remembers is in the turns."""

    span: int | None  # how many past turns of the environment it reads; None: all of them

    async def prompt(self, past: Sequence[Turn], index: int, observation: Observation, ask: Ask) -> list[Message]:
        """The messages of the next turn.

        `past` holds the last `span` turns of this episode (with those that the memory asked for among them), their
        prompts and log-probs aside, `index` counts the environment's turns so far. `await ask(messages)` consults
        the model: question and answer become a turn of reward 0, which is trained like any other. A prompt that is too
        long is asked for again with fewer turns in `past`; questions have the answers that they had.
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

    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> tuple[int, ...]:
        """The ids of the conversation, up to where the model's next reply begins.

        `tools` are shown to the model, each in the nested form of OpenAI: {"type": "function", "function": {...}}.
        """
        ...

    def text(self, token_ids: Sequence[int]) -> str: ...

    def encode(self, text: str) -> Sequence[int]:
        """The ids of a piece of text by itself."""
        ...

    def markup(self, texts: Sequence[str]) -> Mapping[int, str]:
        """Those of the texts that are one special token each, by their ids."""
        ...

    def ends_with(self, token_ids: Sequence[int], text: str) -> bool:
        """Whether the ids spell the text at their end, white space aside; special tokens count as spelt."""
        ...

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


@runtime_checkable
class Pausable(Protocol):
    """An engine that can stop in the middle of replies: what is sampled so far is kept."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


@runtime_checkable
class Closable(Protocol):
    """Holds processes, threads or connections until it is closed."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Setting:
    """What an agent is made from."""

    config: Config
    task: str
    codec: Codec
    shared: Shared


class Session(Protocol):
    """One episode as its agent sees it."""

    @property
    def name(self) -> str:
        """Task, slot and episode."""
        ...

    @property
    def seed(self) -> int:
        """Of the level."""
        ...

    @property
    def sample(self) -> Sample | None:
        """What is asked; None where an environment makes the level of the seed."""
        ...

    @property
    def turns(self) -> int:
        """Recorded so far, those not counted that the memory asked for."""
        ...

    async def generate(self, prompt_ids: Sequence[int]) -> Generation:
        """Sample a reply. Waits where the batch is full: the next one goes on from here."""
        ...

    def record(self, turn: Turn) -> None:
        """Keep a turn; a later one goes on in time from it."""
        ...

    def reward(self, amount: float, turn: int | None = None) -> None:
        """Add to what a turn has earned, counted from 0; None: the newest.

        Raises EpisodeFailure where there was no such turn, or an earlier batch had it, unless the amount is 0.
        """
        ...

    def count(self, name: str, amount: float = 1.0) -> None:
        """Add to a figure of the episode; the mean over episodes is logged."""
        ...

    def shortened(self) -> None:
        """Tell that older turns had to be left out of a prompt; the batch counts such prompts."""
        ...

    def write(self, text: str) -> None:
        """Add to the transcript of the episode, if it is one of those that are kept to be read."""
        ...

    def span(self, kind: str, name: str, inputs: Any) -> AbstractContextManager[Tell]:
        """Time what happens inside, as a part of the newest turn, if the episode is one of those that are traced.

        Replies are traced without it. The inputs are JSON, and are not copied.
        """
        ...


class Agent(Protocol):
    """Plays episodes, one after the other; each slot has its own.

    Many play at once in one event loop, and none waits for another. After a crash an agent plays its episode again from
    the start, and is given the replies that it got; one that is `Resumable` needs none of that.
    """

    async def run(self, session: Session) -> Ending:
        """Play an episode to its end, or go on with the one that was restored."""
        ...


@runtime_checkable
class Resumable(Protocol):
    """An agent that can say where its episode stands."""

    def state(self) -> Any:
        """JSON."""
        ...

    async def restore(self, state: Any, seed: int) -> bool:
        """Bring the episode of this level back; False if that is impossible, and a new one is to begin."""
        ...


@runtime_checkable
class Preparable(Protocol):
    """An agent that needs what takes long to be made: all slots begin to make it, and then each waits for its own."""

    def prepare(self) -> None:
        """Wait for it. A ValueError where it cannot be made."""
        ...


@runtime_checkable
class Choosy(Protocol):
    """An agent that can tell which samples it could not play, before anything is played."""

    def refuse(self, sample: Sample) -> None:
        """A ValueError where this is one."""
        ...


class Advantage(Protocol):
    """Assigns credit along time, one number a sampled token."""

    critic: bool  # it reads values and answers with returns; without, it compares whole episodes
    groups: bool  # it compares the episodes of a level, and needs several of each
    whiten: bool  # its advantages are brought to mean 0 and variance 1 over the batch, unless the recipe says otherwise

    def __call__(self, streams: Streams) -> Estimate: ...


class Tracker(Protocol):
    """Receives the figures of a step.

    It is made with the `folder` of the run, and the number of steps `done`: those after it were never told, or are to
    be forgotten, since they happen again.
    """

    def log(self, metrics: Mapping[str, float], step: int) -> None: ...


class Tracer(Protocol):
    """Keeps traces, each told whole when its episode is over. Traces are numbered from 0, in order."""

    def write(self, trace: Sequence[Entry]) -> None:
        """The entries of one trace: each comes after its parent."""
        ...

    def forget_after(self, traces: int) -> None:
        """Let go of all but the first so many traces: the rest is about to happen again."""
        ...

    def close(self) -> None: ...
