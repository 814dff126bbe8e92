"""Which server a request goes to: the one that read its episode so far, else the one with the least to do."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from turnwise.seeds import derive

_REMEMBERED = 10_000  # requests whose server is known


@dataclass
class Counters:
    """What a server has done so far."""

    requests: int = 0
    tokens: int = 0  # sampled
    failures: int = 0
    moved: int = 0  # requests that began here and went on elsewhere


@dataclass
class _State:
    outstanding: int = 0  # tokens that its requests may still read and sample
    failures: int = 0  # in a row
    up: bool = True


class Router:
    """Keeps no sockets and no clocks: the same calls choose the same servers in every process."""

    def __init__(self, names: Sequence[str], max_failures: int):
        self.counters = {name: Counters() for name in names}
        self._states = {name: _State() for name in names}
        self._max_failures = max_failures
        self._homes: OrderedDict[str, str] = OrderedDict()

    @property
    def up(self) -> list[str]:
        return [name for name, state in self._states.items() if state.up]

    def choose(self, request_id: str, avoid: str = "") -> str | None:
        """The server for a request, None while all are down; the one to `avoid` only where there is no other.

        Requests without an id have no home.
        """
        up = [name for name in self.up if name != avoid] or self.up
        home = self._homes.get(request_id)
        if home not in up:
            least = min((self._states[name].outstanding for name in up), default=0)
            tied = [name for name in up if self._states[name].outstanding == least]
            chosen = max(tied, key=lambda name: derive("route", request_id, name), default=None)
            if home is not None and chosen is not None:
                self.counters[home].moved += 1
            home = chosen
        if request_id and home is not None:
            self._homes[request_id] = home
            self._homes.move_to_end(request_id)
            if len(self._homes) > _REMEMBERED:
                self._homes.popitem(last=False)
        return home

    @contextmanager
    def busy(self, name: str, tokens: int) -> Iterator[None]:
        """A server has so many tokens to do, for a while."""
        self.counters[name].requests += 1
        state = self._states[name]
        state.outstanding += tokens
        try:
            yield
        finally:
            state.outstanding -= tokens

    def succeeded(self, name: str) -> None:
        self._states[name].failures = 0

    def failed(self, name: str, gone: bool) -> bool:
        """Count a failure; whether it takes the server out. One that is `gone` may come back with other weights."""
        state = self._states[name]
        self.counters[name].failures += 1
        state.failures += 1
        if not state.up or not (gone or state.failures >= self._max_failures):
            return False
        state.up = False
        return True

    def restore(self, name: str) -> None:
        """The server answers again."""
        state = self._states[name]
        state.failures, state.up = 0, True
