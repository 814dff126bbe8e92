"""Where environments run: in the caller's own thread, each in a thread of its own, or in child processes.

All three answer a call with a future. In threads and processes an environment is made, played and closed by one and the
same thread, because some libraries bear no other. Child processes are spawned, never forked, since the threads of torch
do not survive a fork; what crosses the pipe is a configuration, a few words and plain records.
"""

import contextlib
import importlib
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from turnwise.config import EnvironmentConfig
from turnwise.cores import cores
from turnwise.envs.checked import CheckedEnvironment
from turnwise.failures import EnvironmentFailure, NeighbourFailure

START_S = 60.0  # within which a child process must have begun
GRACE_S = 2.0  # for environments to close

Make = Callable[[], CheckedEnvironment]
Answer = tuple[Any, Exception | None]


class Worker(Protocol):
    """One environment, wherever it runs."""

    @property
    def timeout_s(self) -> float | None:
        """How long to wait for an answer; None where the worker sees to it that one comes."""
        ...

    def call(self, name: str, *arguments: Any) -> Future[Any]:
        """Call a method of the environment; the first call makes it, and `close` is the last."""
        ...


class Workers:
    """Opens a worker for each environment, of the kind that the configuration asks for."""

    def __init__(self, config: EnvironmentConfig, environments: int):
        """`environments`: how many there will be; no more processes are started than that."""
        self._config = config
        self._open: list[Worker] = []
        self._processes: list[_Process] = []
        if config.workers == "process":
            number = min(config.processes or cores(), environments)
            try:
                for _ in range(number):
                    self._processes.append(_Process(config.timeout_s, config.id.rpartition(":")[0]))
            except EnvironmentFailure as failure:
                self.close()
                raise ValueError(
                    f"environment.workers is process, and of {number}, {failure}; lower environment.processes"
                ) from failure

    def open(self, make: Make) -> Worker:
        worker: Worker
        if self._config.workers == "inline":
            worker = Inline(make)
        elif self._config.workers == "thread":
            worker = Thread(make, self._config.timeout_s)
        else:
            worker = Tenant(make, min(self._processes, key=lambda process: process.tenants))
        self._open.append(worker)
        return worker

    def release(self, worker: Worker) -> None:
        """Let go of an environment, without waiting for it: it may hang."""
        self._open.remove(worker)
        worker.call("close")

    def close(self) -> None:
        """Let go of all of them: what has not closed after a short while is killed with its process, or left behind."""
        wait([worker.call("close") for worker in self._open], GRACE_S)
        self._open.clear()
        for process in self._processes:
            process.end()
        self._processes.clear()


class Inline:
    """In the caller's own thread: the cheapest, for what never blocks; it ends with what ends the process."""

    timeout_s = None  # a call has been answered when it returns

    def __init__(self, make: Make):
        self._home = _Home(make)

    def call(self, name: str, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        _settle(future, self._home.answer(name, arguments))
        return future


class Thread:
    """In a thread of its own: nobody else waits for it, but if it hangs, it can only be left behind."""

    def __init__(self, make: Make, timeout_s: float):
        self.timeout_s = timeout_s
        self._calls: queue.SimpleQueue[tuple[str, tuple[Any, ...], Future[Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, args=(_Home(make),), daemon=True).start()

    def call(self, name: str, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._calls.put((name, arguments, future))
        return future

    def _serve(self, home: "_Home") -> None:
        name = ""
        while name != "close":
            name, arguments, future = self._calls.get()
            if future.set_running_or_notify_cancel():
                _settle(future, home.answer(name, arguments))


class Tenant:
    """In a child process, which it may share: if it hangs or crashes, those who live there with it are lost too."""

    timeout_s = None  # the process keeps the time: waiting for a neighbour's turn to end does not count

    def __init__(self, make: Make, process: "_Process"):
        self.make = make
        self.life = 0  # of the process, in which the environment was made; 0: it is yet to be made
        self._process = process
        process.tenants += 1

    def call(self, name: str, *arguments: Any) -> Future[Any]:
        self._process.tenants -= name == "close"
        return self._process.ask(self, name, arguments)


class _Home:
    """An environment where it lives."""

    def __init__(self, make: Make):
        self._make = make
        self._environment: CheckedEnvironment | None = None

    def answer(self, name: str, arguments: tuple[Any, ...]) -> Answer:
        """What a method of the environment answers, or what it raises."""
        try:
            if self._environment is None:
                if name == "close":
                    return None, None
                self._environment = self._make()
            return getattr(self._environment, name)(*arguments), None
        except Exception as error:
            return None, error


class _Process:
    """A child process and the thread that talks to it: one call at a time, in the order in which they were asked.

    One that takes too long is killed with its process, and whoever else lived there hears of it at the next call. The
    next newcomer then gets a new child.
    """

    def __init__(self, timeout_s: float, module: str):
        self.tenants = 0
        self._timeout_s = timeout_s
        self._module = module  # of its environments
        self._calls: queue.SimpleQueue[tuple[Tenant, str, tuple[Any, ...], Future[Any]] | None] = queue.SimpleQueue()
        self._child: BaseProcess | None = None
        self._life = 0  # counts the children
        self._end = ""  # why the last one is no more
        self._ended = False  # on purpose: no other is started
        self._start()  # before anybody calls, so that all processes start side by side
        self._thread = threading.Thread(target=self._relay, daemon=True)
        self._thread.start()

    def ask(self, tenant: Tenant, name: str, arguments: tuple[Any, ...]) -> Future[Any]:
        future: Future[Any] = Future()
        self._calls.put((tenant, name, arguments, future))
        return future

    def end(self) -> None:
        """End the child, in whatever call it may be."""
        self._ended = True
        self._calls.put(None)
        self._thread.join(GRACE_S)
        while self._thread.is_alive():
            if child := self._child:
                _kill(child)
            self._thread.join(0.1)

    def _relay(self) -> None:
        while (call := self._calls.get()) is not None:
            tenant, name, arguments, future = call
            if future.set_running_or_notify_cancel():
                try:
                    _settle(future, self._ask(tenant, name, arguments))
                except Exception as failure:  # whatever it is, or this call and all that follow would wait for ever
                    future.set_exception(failure)
        if self._child:
            self._bury(GRACE_S)

    def _ask(self, tenant: Tenant, name: str, arguments: tuple[Any, ...]) -> Answer:
        lives_here = self._child is not None and tenant.life == self._life
        if name == "close" and not lives_here:
            return None, None
        if tenant.life and not lives_here:
            raise NeighbourFailure(f"the process that it shared was lost, because {self._end}")
        if self._child is None:
            if self._ended:
                raise EnvironmentFailure("its process has ended")
            self._start()
        if not self._begun:
            self._receive(START_S, f"its process did not begin within {START_S:g} s")
            self._begun = True
        make, tenant.life = None if tenant.life else tenant.make, self._life
        with contextlib.suppress(OSError):  # a child that is no more gives no answer either
            self._pipe.send((id(tenant), make, name, arguments))
        return self._receive(self._timeout_s, f"a call took longer than environment.timeout_s={self._timeout_s:g}")

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        child = context.Process(target=_live, args=(theirs, self._module), daemon=True)
        try:
            child.start()
        except OSError as error:
            raise EnvironmentFailure(f"its process could not be started: {error}") from error
        finally:
            theirs.close()
        self._child = child  # now that it can be killed
        self._life += 1
        self._begun = False  # the child says when

    def _receive(self, timeout_s: float, too_late: str) -> Answer:
        try:
            if self._pipe.poll(timeout_s):
                return self._pipe.recv()
            self._end = too_late
            self._bury(0)
        except Exception as error:
            code = self._bury(GRACE_S)
            fate = f"exit code {code}" if code >= 0 else f"signal {-code}, {signal.strsignal(-code)}"
            closed = isinstance(error, EOFError | OSError)
            self._end = f"its process ended with {fate}" if closed else f"its answer cannot be read: {error}"
        raise EnvironmentFailure(self._end)

    def _bury(self, grace_s: float) -> int:
        """End the child and wait for it; the exit code. An idle one ends by itself, because its pipe is closed."""
        child, self._child = self._child, None
        assert child is not None
        self._pipe.close()
        child.join(grace_s)
        _kill(child)
        child.join()
        return child.exitcode or 0


def _kill(child: BaseProcess) -> None:
    """And whatever its environments have started."""
    assert child.pid  # 0 would be our own group
    child.kill()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


def _live(pipe: Connection, module: str) -> None:
    """A child's life: answer calls until the pipe is closed."""
    os.setpgid(0, 0)  # so that what its environments start goes with it
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C means the parent, which decides when to end
    threading.Thread(target=_outlive_no_parent, daemon=True).start()
    homes: dict[int, _Home] = {}
    with contextlib.suppress(EOFError, OSError):
        pipe.send((None, None))
        with contextlib.suppress(Exception, SystemExit):  # of which whoever makes an environment hears
            if module:
                importlib.import_module(module)  # side by side with other children, and not one by one
        while True:
            key, make, name, arguments = pipe.recv()
            if make is not None:
                homes[key] = _Home(make)
            answer, error = homes[key].answer(name, arguments)
            # Whatever kind of ValueError it is, the parent must be able to read it.
            pipe.send((answer, ValueError(str(error)) if isinstance(error, ValueError) else error))
            if name == "close":
                del homes[key]
    for home in homes.values():
        home.answer("close", ())


def _outlive_no_parent() -> None:
    """A child that waits sees its pipe closed; one that is busy, or hangs, must not go on alone."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    time.sleep(GRACE_S)
    os.killpg(0, signal.SIGKILL)


def _settle(future: Future[Any], answer: Answer) -> None:
    result, error = answer
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
