"""What all slots of a run use together: workers for environments, tools, scorers, data."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from turnwise.config import Config
from turnwise.data import Data, load_data
from turnwise.envs.workers import Workers
from turnwise.protocols import Closable

T = TypeVar("T")


class Shared:
    """Made once a run, closed at its end."""

    def __init__(self, config: Config, environments: int, data: Data | None = None):
        """`environments`: how many there may be at once. `data`: the samples, if somebody has read them already."""
        self._config = config
        self.workers = Workers(config.environment, environments)
        self._made: dict[str, Any] = {"data": data} if data else {}
        self.asked: set[str] = set()  # since somebody cleared it, under which names

    def once(self, name: str, make: Callable[[], T]) -> T:
        """What was made under this name, or what is made now."""
        self.asked.add(name)
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    @property
    def data(self) -> Data:
        """The samples that the recipe names."""
        assert self._config.data is not None
        return self.once("data", partial(load_data, self._config.data))

    def close(self) -> None:
        """Let go of everything, the newest first."""
        while self._made:
            _, thing = self._made.popitem()
            if isinstance(thing, Closable):
                thing.close()
        self.workers.close()
