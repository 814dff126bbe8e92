"""What slots tell of a batch besides its turns."""

from dataclasses import dataclass, field

from turnwise.traces import Trace
from turnwise.types import Segment


@dataclass(frozen=True)
class Transcript:
    """A whole episode as readable text."""

    slot: int
    episode: int
    task: str
    text: str


@dataclass
class Tally:
    """What happened besides turns while a batch was collected."""

    failures: int = 0  # of episodes
    dropped_turns: int = 0  # of failed episodes: never trained on
    shortened_prompts: int = 0  # turns whose prompt left out older turns
    useless_groups: int = 0  # left out, since all their episodes returned the same
    last_failure: str = ""
    played: list[Segment] = field(default_factory=list)  # those of useless groups too
    transcripts: list[Transcript] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)
