"""What an episode did, turn by turn and call by call, and who keeps it."""

from turnwise.traces.recording import Recording as Recording
from turnwise.traces.recording import Trace as Trace
from turnwise.traces.recording import no_span as no_span
