"""Results that are kept, the newest of them, as long as what they are of takes so much room and no more."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

_KEY = 100  # characters' worth that each takes besides


class Remembered:
    """A function of texts, which is called once for those that come again soon. May be called from any thread.

    functools.lru_cache counts results; texts are as long as an environment likes.
    """

    def __init__(self, function: Callable[..., Any], characters: int, own: int | None = None):
        """The texts of what is kept have so many `characters` in all, less than the results may have.

        Of what the function is given only the first `own` count, where the others are the same in many keys.
        """
        self._function, self._most, self._own = function, characters, own
        self._kept: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
        self._characters = 0
        self._lock = threading.Lock()

    def __call__(self, *given: Any) -> Any:
        with self._lock:
            if given in self._kept:
                self._kept.move_to_end(given)
                return self._kept[given]
        result = self._function(*given)
        with self._lock:
            if given not in self._kept:  # no other thread was faster
                self._kept[given] = result
                self._characters += self._length(given)
            while self._characters > self._most:
                self._characters -= self._length(self._kept.popitem(last=False)[0])
        return result

    def _length(self, given: tuple[Any, ...]) -> int:
        return _KEY + sum(len(one) for one in given[: self._own] if isinstance(one, str | tuple))
