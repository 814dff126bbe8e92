"""Calls that may hang: off the event loop where they would block it, and never longer than their time."""

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Exited(Exception):
    """A call wanted to end our process."""


async def invoke(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Await a coroutine function; run any other in a thread. One that wants to end our process only fails."""
    try:
        if inspect.iscoroutinefunction(function):
            return await function(*args, **kwargs)
        answer = await in_thread(lambda: function(*args, **kwargs))
        return await answer if inspect.isawaitable(answer) else answer
    except SystemExit as error:
        raise Exited(f"it tried to exit ({error.code})") from error


async def in_thread(function: Callable[[], T]) -> T:
    """Run it in a daemon thread of its own.

    Not `asyncio.to_thread`: a few calls that never return would fill its pool, which everybody shares, and Python waits
    for that pool before it exits. A thread costs some 50 microseconds.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(answer: Any, error: BaseException | None) -> None:
        if not future.done():
            future.set_result(answer) if error is None else future.set_exception(error)

    def work() -> None:
        answer, error = None, None
        try:
            answer = context.run(function)
        except StopIteration as stop:  # which a future cannot hold
            error = RuntimeError(f"StopIteration: {stop.value}")
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop may be closed: nobody waits any more
            loop.call_soon_threadsafe(settle, answer, error)

    threading.Thread(target=work, daemon=True).start()
    return await future


class Overrun(Exception):
    """A call took longer than it may. Not a TimeoutError, which the call may raise for reasons of its own."""


async def bounded(awaitable: Awaitable[T], timeout_s: float) -> T:
    """The same with a time limit; raises Overrun. What overruns is cancelled, and not waited for."""
    task = asyncio.ensure_future(awaitable)
    try:
        # Not asyncio.timeout: what was answered while the model kept the loop busy was answered in time.
        done, _ = await asyncio.wait({task}, timeout=timeout_s)
    finally:
        task.cancel()
    if not done:
        task.add_done_callback(_forget)
        raise Overrun
    if task.cancelled():
        raise RuntimeError("it cancelled itself")
    return task.result()


def _forget(task: asyncio.Future[Any]) -> None:
    """What a call says after its time concerns nobody."""
    if not task.cancelled():
        task.exception()


def fitting(function: Callable[..., Any], whole: str, values: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The keyword arguments that a method takes: each of the `values` by its name, all of them as `whole`, and `more`.

    A method with **kwargs takes everything.
    """
    offered = {**values, whole: values, **more}
    return offered if _takes_all(function) else {name: offered[name] for name in _names(function) if name in offered}


def left_over(function: Callable[..., Any], whole: str, values: dict[str, Any]) -> set[str]:
    """The values that a method would never see."""
    names = _names(function)
    return set() if whole in names or _takes_all(function) else set(values) - names


def _names(function: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(function).parameters) - {"instance_id", "parameters"}


def _takes_all(function: Callable[..., Any]) -> bool:
    return any(one.kind is one.VAR_KEYWORD for one in inspect.signature(function).parameters.values())
