"""An event loop whose clock stands still while it does."""

import asyncio


def refuse_inside_a_loop() -> None:
    """A ValueError where an event loop runs in this thread already, as in a notebook's cells: no other can."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ValueError(
        "an event loop runs in this thread, as it does in a notebook; call it in a thread of its own: "
        "await asyncio.to_thread(train, config)"
    )


class BatchLoop(asyncio.SelectorEventLoop):
    """Runs while a batch is collected, and stands still while the trainer is at work: that time is nobody's.

    A call that is under way from one batch to the next, to a tool or to a server, has as long as in one.
    """

    def __init__(self) -> None:
        self._stood_s = 0.0
        self._stands_since: float | None = None
        super().__init__()

    def time(self) -> float:
        return super().time() - self._stood_s

    def run_forever(self) -> None:
        if self._stands_since is not None:
            self._stood_s += self.time() - self._stands_since
        try:
            super().run_forever()
        finally:
            self._stands_since = self.time()
