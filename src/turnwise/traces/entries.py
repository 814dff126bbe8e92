"""A trace as its keepers are told it: one plain entry for the episode, each turn, each reply and each tool call."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

from turnwise.traces.recording import Sampled, Span, Trace, TracedTurn
from turnwise.types import Generation

Text = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class Entry:
    """One span. Its attributes are JSON; those of each kind are described in docs/traces.md."""

    trace: int  # counts the traces of a run
    span: int  # counts the spans of a trace; 0 is the episode
    parent: int | None
    kind: str  # episode, turn, generation, tool, or what an agent calls it
    name: str
    start_s: float  # Unix time
    end_s: float
    inputs: Any
    outputs: Any
    attributes: dict[str, Any]

    def flat(self) -> dict[str, Any]:
        """One row of a table. An attribute cannot pass for what every entry has."""
        row = dict(vars(self))
        attributes = row.pop("attributes")
        return {**row, **attributes, **row}


def describe(trace: Trace, number: int, step: int, text: Text) -> list[Entry]:
    """The entries of a trace, parents first; `text` decodes token ids, `step` is that of the episode's last batch."""
    return list(_Describer(trace, number, text).entries(step))


class _Describer:
    def __init__(self, trace: Trace, number: int, text: Text):
        self._trace = trace
        self._number = number
        self._text = text
        self._spans = count()

    def entries(self, step: int) -> Iterator[Entry]:
        trace, recording = self._trace, self._trace.recording
        turns = recording.turns
        asked = self._text(turns[0].turn.prompt_ids) if turns else None
        said = turns[-1].turn.text if turns else None
        name = f"{trace.task}/{trace.slot}/{trace.episode}"
        about = {"step": step, **_about(trace)}
        episode = self._entry(None, "episode", name, (recording.start_s, trace.end_s), asked, said, about)
        yield episode
        yield from self._inside(episode, recording.spans)
        trained = len(turns) - trace.dropped_turns
        for place, turn in enumerate(turns):
            yield from self._turn(episode, place, turn, place >= trained)
        for reply in recording.loose:
            yield self._reply(episode, reply)

    def _turn(self, episode: Entry, place: int, traced: TracedTurn, dropped: bool) -> Iterator[Entry]:
        turn = traced.turn
        end_s = traced.end_s or self._trace.end_s
        shown = self._text(turn.prompt_ids)
        about: dict[str, Any] = {
            "row": traced.row,
            "prompt_ids": turn.prompt_ids,
            "token_ids": turn.generation.token_ids,
            **_sampling(turn.generation),
            "action_tokens": turn.action_tokens,
            "reward": turn.reward,
            "dropped": dropped,
        }
        about |= asdict(turn.action) if turn.action else {"status": "of_memory"}
        entry = self._entry(episode, "turn", f"turn {place}", (traced.start_s, end_s), shown, turn.text, about)
        yield entry
        counts = {"prompt_tokens": traced.prompt_tokens, "tokens": len(turn.generation.token_ids)}
        yield self._entry(entry, "generation", "generate", (traced.start_s, traced.sampled_s), None, None, counts)
        yield from self._inside(entry, traced.spans)

    def _inside(self, parent: Entry, spans: Sequence[Span]) -> Iterator[Entry]:
        for span in spans:
            end_s = span.end_s or parent.end_s
            about = span.attributes | {"error": span.error}
            yield self._entry(parent, span.kind, span.name, (span.start_s, end_s), span.inputs, span.outputs, about)

    def _reply(self, episode: Entry, reply: Sampled) -> Entry:
        """One of which no turn was made, because the episode was lost."""
        generation = reply.generation
        about = {"prompt_ids": reply.prompt_ids, "token_ids": generation.token_ids, **_sampling(generation)}
        texts = (self._text(reply.prompt_ids), self._text(generation.token_ids))
        return self._entry(episode, "generation", "generate", (reply.start_s, reply.end_s), *texts, about)

    def _entry(
        self,
        parent: Entry | None,
        kind: str,
        name: str,
        times: tuple[float, float],
        inputs: Any,
        outputs: Any,
        about: dict[str, Any],
    ) -> Entry:
        place = parent.span if parent else None
        return Entry(self._number, next(self._spans), place, kind, name, *times, inputs, outputs, about)


def _about(trace: Trace) -> dict[str, Any]:
    about = {key: getattr(trace, key) for key in ("slot", "group", "episode", "task", "seed", "sample", "end")}
    about |= {"failure": trace.failure, "dropped_turns": trace.dropped_turns}
    if trace.outcome is not None:
        about |= asdict(trace.outcome)
    return about


def _sampling(generation: Generation) -> dict[str, Any]:
    logprobs = generation.logprobs
    return {
        "logprob_mean": sum(logprobs) / len(logprobs),
        "logprob_min": min(logprobs),
        "logprob_sum": sum(logprobs),
        "finish_reason": generation.finish_reason,
        "policy_version": generation.policy_version,
    }
