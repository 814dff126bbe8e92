"""What is recorded of an episode that is traced: its turns, what its agent did in them, and when.

Times are Unix seconds. A recording is part of where a slot stands, so it is saved and restored with its episode.
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Literal

from turnwise.protocols import Tell
from turnwise.types import End, Generation, Outcome, Turn

_BEGINNING = time.time() - time.perf_counter()


def now() -> float:
    """Unix time that never goes back while the process lives."""
    return _BEGINNING + time.perf_counter()


@dataclass
class Span:
    """Something that an agent did and that took time, such as a tool call."""

    kind: str
    name: str
    inputs: Any  # JSON, as the outputs
    start_s: float
    end_s: float | None = None  # None: under way
    outputs: Any = None
    attributes: dict[str, Any] = field(default_factory=dict)
    error: str = ""


@dataclass
class Sampled:
    """A reply, and when it was sampled."""

    prompt_ids: tuple[int, ...]
    generation: Generation
    start_s: float
    end_s: float


@dataclass
class TracedTurn:
    """A turn, of whose prompt only the ids are kept that its row did not hold yet."""

    turn: Turn
    row: int  # counts the rows of the episode: a prompt that does not extend its row opens the next
    prompt_tokens: int  # of the whole prompt
    start_s: float
    sampled_s: float  # when the reply was there
    end_s: float | None = None  # when the next reply was asked for; None: under way
    spans: list[Span] = field(default_factory=list)


@dataclass
class Recording:
    """An episode under way."""

    start_s: float = field(default_factory=now)
    turns: list[TracedTurn] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)  # before the first turn
    loose: list[Sampled] = field(default_factory=list)  # replies of which no turn was made yet
    row_ids: tuple[int, ...] = ()  # of the newest row

    def pause(self) -> None:
        """The agent asks for a reply, so the turn before is over; what it now waits for is no part of any turn."""
        if self.turns and self.turns[-1].end_s is None:
            self.turns[-1].end_s = now()

    def sampled(self, prompt_ids: tuple[int, ...], generation: Generation, start_s: float) -> None:
        self.loose.append(Sampled(prompt_ids, generation, start_s, now()))

    def record(self, turn: Turn) -> None:
        """A turn, made of a reply that was sampled before."""
        self.pause()
        reply = next((one for one in self.loose if turn.generation.begins(one.generation)), None)
        if reply is not None:
            self.loose.remove(reply)
        start_s, sampled_s = (reply.start_s, reply.end_s) if reply else (now(), now())
        prompt, known = turn.prompt_ids, len(self.row_ids)
        extends = bool(self.turns) and prompt[:known] == self.row_ids
        row = self.turns[-1].row + (not extends) if self.turns else 0
        new = replace(turn, prompt_ids=prompt[known:] if extends else prompt)
        self.turns.append(TracedTurn(new, row, len(prompt), start_s, sampled_s))
        self.row_ids = prompt + turn.generation.token_ids

    def take_back(self, replies: Sequence[Generation]) -> None:
        """Forget what came of these, the newest ones: it is to happen again, and all of it if no turn is left."""
        self.loose = [one for one in self.loose if one.generation not in replies]
        left = list(replies)
        while self.turns and (of := [one for one in left if self.turns[-1].turn.generation.begins(one)]):
            left.remove(of[0])
            del self.turns[-1]
        row = [one.turn for one in self.turns if one.row == self.turns[-1].row]
        self.row_ids = tuple(chain.from_iterable(turn.prompt_ids + turn.generation.token_ids for turn in row))
        if not self.turns:
            self.spans = []

    def reward(self, amount: float, turn: int) -> None:
        """Add to what the n-th turn has earned, those not counted that a memory asked for."""
        rewarded = [one for one in self.turns if not one.turn.of_memory][turn]
        rewarded.turn = replace(rewarded.turn, reward=rewarded.turn.reward + amount)

    @contextmanager
    def span(self, kind: str, name: str, inputs: Any) -> Iterator[Tell]:
        """Time what happens inside, as a part of the newest turn; what it raises is noted as its error."""
        _check_json(name, inputs)
        span = Span(kind, name, inputs, now())
        (self.turns[-1].spans if self.turns else self.spans).append(span)

        def note(outputs: Any, **attributes: Any) -> None:
            _check_json(name, [outputs, attributes])
            span.outputs = outputs
            span.attributes |= attributes

        try:
            yield note
        except BaseException as error:
            span.error = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise
        finally:
            span.end_s = now()


def _check_json(name: str, told: Any) -> None:
    try:
        json.dumps(told)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the span {name!r} is told {told!r:.80}; tell it what is JSON ({error})") from error


def no_span(kind: str, name: str, inputs: Any) -> AbstractContextManager[Tell]:
    """For what is not traced."""
    return _NOTHING


def _ignore(outputs: Any, **attributes: Any) -> None:
    pass


_NOTHING = nullcontext(_ignore)


@dataclass(frozen=True)
class Trace:
    """An episode that is over."""

    slot: int
    group: int
    episode: int  # counts the episodes of its slot
    task: str
    seed: int  # of the level
    sample: int | None  # index of the row in its source; None where an environment makes the level
    recording: Recording
    end: End | Literal["dropped"]
    outcome: Outcome | None  # None where it was dropped
    failure: str = ""  # why it was dropped
    dropped_turns: int = 0  # the last so many turns were never trained on
    end_s: float = field(default_factory=now)
