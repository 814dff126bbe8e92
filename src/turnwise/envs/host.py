"""Keeps one environment alive, wherever it runs: waits for its answers, and replaces it where it is broken."""

import asyncio
import concurrent.futures
from functools import cached_property, partial
from typing import Any

from turnwise.config import EnvironmentConfig
from turnwise.envs.checked import CheckedEnvironment, Offer
from turnwise.envs.workers import Thread, Workers
from turnwise.failures import EnvironmentFailure
from turnwise.types import Feedback, Observation


class Host:
    """One environment of one task, replaced by a fresh one after a failure."""

    def __init__(self, config: EnvironmentConfig, task: str, workers: Workers):
        """Begins to make the environment; `offer` waits for it.

        In child processes environments are made side by side, but in threads one after the other: all at once would
        share the cores, and each take longer than a call may.
        """
        self._name = f"environment {config.id} ({task})"
        self._make = partial(CheckedEnvironment, config, task)
        self._workers = workers
        self._worker = workers.open(self._make)
        self._first = self._worker.call("offer")
        self._made = True
        if isinstance(self._worker, Thread):
            _ = self.offer

    @cached_property
    def offer(self) -> Offer:
        """Waits until the environment is made; ValueError where it cannot be."""
        done, _ = concurrent.futures.wait({self._first}, self._worker.timeout_s)
        try:
            return self._answer(self._first, bool(done))
        except (EnvironmentFailure, ValueError) as error:
            self._workers.release(self._worker)
            raise ValueError(str(error)) from error

    async def reset(self, seed: int) -> Observation:
        if not self._made:
            try:
                await self._call("offer")
            except ValueError as error:  # no mistake in the configuration: it was made before
                raise EnvironmentFailure(f"{self._name} failed: it cannot be made again: {error}") from error
            self._made = True
        return await self._call("reset", seed)

    async def step(self, action: str) -> Feedback:
        return await self._call("step", action)

    async def translate(self, said: str) -> str | None:
        """The legal action that a near-miss means; None where it means none."""
        return await self._call("translate", said) if self.offer.translates else None

    async def expert(self) -> str:
        """What the environment's own expert would play now."""
        return await self._call("expert")

    def renew(self) -> None:
        """Give up a broken environment; a fresh one is made at the next reset."""
        self._workers.release(self._worker)
        self._worker = self._workers.open(self._make)
        self._made = False

    async def _call(self, name: str, *arguments: Any) -> Any:
        future = self._worker.call(name, *arguments)
        return self._answer(future, future.done() or await _finishes(future, self._worker.timeout_s))

    def _answer(self, future: concurrent.futures.Future[Any], in_time: bool) -> Any:
        if not in_time:
            limit = f"{self._worker.timeout_s:g}"
            raise EnvironmentFailure(f"{self._name} failed: a call took longer than environment.timeout_s={limit}")
        try:
            return future.result()
        except EnvironmentFailure as failure:
            raise type(failure)(f"{self._name} failed: {failure}") from failure


async def _finishes(future: concurrent.futures.Future[Any], timeout_s: float | None) -> bool:
    """Whether it is done within so many seconds."""
    waiter = asyncio.wrap_future(future)
    try:
        # Not asyncio.timeout: what was answered while the model kept the loop busy was answered in time.
        done, _ = await asyncio.wait({waiter}, timeout=timeout_s)
        return bool(done)
    finally:
        if not waiter.cancel():
            waiter.exception()  # heard, so that asyncio does not report it as unheard
