"""The records of a run, in the order in which they are made.

Plain, frozen and complete when made, so that they can cross a process or a machine. Nothing here imports torch.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, TypedDict, get_args, get_type_hints


class CalledFunction(TypedDict):
    """A tool by name, and what it is given: an object, not the text of one."""

    name: str
    arguments: dict[str, Any]


class MessageCall(TypedDict):
    """A call in a reply, in the spelling of OpenAI."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class Message(TypedDict):
    """One chat message. A reply that the model sampled carries its ids, so that it is never tokenised again."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    reasoning_content: NotRequired[str]  # of a reply, where the template writes reasoning apart from the content
    tool_calls: NotRequired[Sequence[MessageCall]]  # of a reply; the content then holds the text beside them
    tool_call_id: NotRequired[str]  # of a tool's answer: the call that it answers
    name: NotRequired[str]  # of a tool's answer: the tool
    token_ids: NotRequired[Sequence[int]]


ROLES: tuple[str, ...] = get_args(get_type_hints(Message)["role"])


def is_message(given: Any) -> bool:
    """Whether it has a role and a text, as all messages have."""
    return isinstance(given, Mapping) and given.get("role") in ROLES and isinstance(given.get("content"), str)


@dataclass(frozen=True, slots=True)
class Observation:
    """What an environment shows before a turn."""

    text: str  # a memory may show this part again in later turns
    cue: str = ""  # for the current turn: its state, the answer format; of memories only `full` repeats it
    instructions: str = ""  # the system message: role, goal, legal actions


@dataclass(frozen=True, slots=True)
class Sample:
    """A row of a data set: what an agent is asked, and what its tools, its partner and its scorer know. All is JSON."""

    index: int  # of the row in its source, from 0
    prompt: tuple[Message, ...]
    agent: str = ""  # who plays it; empty: the recipe's default
    data_source: str = ""
    ground_truth: Any = None
    tools: tuple[str, ...] | None = None  # those that the model may call; None: all
    tools_kwargs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # tool -> create_kwargs and the like
    interaction_kwargs: Mapping[str, Any] = field(default_factory=dict)  # for the simulated user
    extra: Mapping[str, Any] = field(default_factory=dict)  # every other column, and the rest of extra_info
    place: str = ""  # where the row stands, for those who must mend it


@dataclass(frozen=True, slots=True)
class Level:
    """What an episode is about."""

    seed: int
    sample: Sample | None = None  # None: an environment makes it of the seed


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample one reply. The same seed, prompt and weights give the same reply in any batch."""

    max_tokens: int
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    seed: int = 0


Finish = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Generation:
    """The tokens that an engine sampled, never empty, the end-of-turn token included where one was sampled."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]  # natural log, of the whole distribution at the sampling temperature
    finish_reason: Finish
    policy_version: int  # steps, that is batches, after which its weights were; of the newest, where there were several
    versions: tuple[int, ...] = ()  # of each token, where new weights came in the middle; else empty

    def begins(self, other: "Generation") -> bool:
        """Whether it is the beginning of the other one, or all of it."""
        return other.token_ids[: len(self.token_ids)] == self.token_ids

    @property
    def token_versions(self) -> tuple[int, ...]:
        """The policy version of each token."""
        return self.versions or (self.policy_version,) * len(self.token_ids)


Status = Literal["valid", "translated", "invalid"]


@dataclass(frozen=True, slots=True)
class Action:
    """What a reply means to the environment."""

    text: str  # what is executed
    status: Status
    said: str  # what the model wrote in the place of the action
    thought: str  # the reasoning before it, without its marker
    start: int  # character of the reply at which the action's part begins; its length if it has none


@dataclass(frozen=True, slots=True)
class Feedback:
    """An environment's whole answer to one action."""

    observation: Observation
    reward: float
    terminated: bool  # the task itself is over: nothing follows, its value is 0
    truncated: bool  # a time limit stopped it: something would have followed
    success: bool | None  # None where the environment does not tell
    progression: float | None  # 0 to 1, how much of the task is done; None where the environment does not tell
    figures: Mapping[str, float] = field(default_factory=dict)  # whatever else it counts, of the episode so far


@dataclass(frozen=True, slots=True)
class Turn:
    """One exchange with the model: a data point of its own."""

    observation: Observation
    prompt_ids: tuple[int, ...]
    generation: Generation
    action: Action | None  # None for a turn that the memory asked for
    action_tokens: int  # how many of the last sampled tokens spell the action
    reward: float  # lands on the last sampled token
    text: str  # the reply, decoded
    shown: str  # the reply as a memory shows it later: an invalid action is replaced by the default
    shown_action: str  # the same without its reasoning

    @property
    def of_memory(self) -> bool:
        """The memory asked, not the environment: no time passed in the task."""
        return self.action is None


@dataclass(frozen=True, slots=True)
class Ending:
    """How an agent says that its episode is over."""

    final_prompt_ids: tuple[int, ...]  # what would have been asked next; empty where the task itself is over
    success: bool | None = None  # None where nobody tells
    progression: float | None = None  # 0 to 1, how much of the task is done; None where nobody tells


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a whole episode went."""

    success: bool | None
    episode_return: float  # undiscounted sum of rewards, penalties included
    turns: int  # turns in the environment
    progression: float | None  # 0 to 1, how much of the task was done; None where the environment does not tell
    figures: Mapping[str, float] = field(default_factory=dict)  # whatever else its agent counted


End = Literal["terminated", "truncated", "cut"]


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive turns of one environment slot inside one batch; the unit along which credit flows."""

    slot: int
    episode: int  # counts the episodes of its slot
    task: str
    seed: int  # of the episode's level: episodes of the same task and seed form a group
    turns: tuple[Turn, ...]
    end: End  # cut: only the batch ended
    final_prompt_ids: tuple[int, ...]  # the next rendered prompt; empty where the task terminated
    outcome: Outcome | None  # None for a cut segment

    @property
    def acted(self) -> int:
        """How many turns were played in the environment."""
        return acted(self.turns)


def acted(turns: Iterable[Turn]) -> int:
    """How many were played in the environment, and not asked for by a memory."""
    return sum(not turn.of_memory for turn in turns)
