"""Houses one environment: makes it, calls it with a time limit, checks and translates what it answers.

Whatever goes wrong inside an environment (it raises, hangs, or answers nonsense) leaves here as EnvironmentFailure.
"""

import asyncio
import contextlib
import importlib
import math
import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import gymnasium

from turnwise.config import EnvironmentConfig, load_object
from turnwise.types import Feedback, Observation

_Calls = queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None]


class EnvironmentFailure(RuntimeError):
    """An environment raised, hung or answered nonsense."""


def make_environment(config: EnvironmentConfig, task: str) -> gymnasium.Env[Any, Any]:
    """The environment of a task, by `module:Class` or by Gymnasium id. A mistake is a ValueError."""
    kwargs = {**config.kwargs, **config.tasks[task]}
    module, _, name = config.id.rpartition(":")
    if module and name.isidentifier():
        factory: Callable[..., Any] = load_object("environment.id", config.id)
    else:
        try:
            if module:
                importlib.import_module(module)
        except ImportError as error:
            raise ValueError(f"environment.id is {config.id!r}, but {error}") from error
        if name not in gymnasium.registry:
            raise ValueError(
                f"environment.id is {config.id!r}, which Gymnasium does not know; "
                "write your own as module:Class, or name the package that registers it as module:id"
            )
        factory = lambda **kw: gymnasium.make(name, disable_env_checker=True, **kw)  # noqa: E731
    try:
        environment = factory(**kwargs)
    except TypeError as error:
        raise ValueError(f"environment.id={config.id} does not take the arguments {kwargs}: {error}") from error
    if not _shows_text(getattr(environment, "observation_space", None)):
        raise ValueError(
            f"environment.id is {config.id!r}, which shows images or numbers alone; "
            "wrap it in an environment whose observation is text, or a dict with `text`"
        )
    return environment


def _shows_text(space: gymnasium.Space[Any] | None) -> bool:
    """False only where it is certain: an environment of texts may do without a space, or have one of its own kind."""
    if isinstance(space, gymnasium.spaces.Dict):
        return "text" in space.spaces
    return not isinstance(space, gymnasium.spaces.Box)


class Host:
    """One environment of one task, replaced by a fresh one after a failure."""

    def __init__(self, config: EnvironmentConfig, task: str, cue: str):
        self.config = config
        self.task = task
        self._cue = cue
        self._threaded = config.workers == "thread"
        self._calls: _Calls = queue.SimpleQueue()
        self._thread: threading.Thread | None = None  # started by the first call
        self.environment = make_environment(config, task)
        space = getattr(self.environment, "action_space", None)  # an environment of texts may do without
        self._discrete = isinstance(space, gymnasium.spaces.Discrete)
        offered = self._attribute("actions", ())
        textual = isinstance(offered, Iterable) and all(isinstance(action, str) for action in offered)
        self.actions: list[str] = list(offered if textual and offered else config.actions)
        self.default_action: str = self._attribute("default_action", config.default_action)
        self.translate: Callable[[str], str | None] | None = self._attribute("translate", None)
        if self._discrete and len(self.actions) != self.environment.action_space.n:  # type: ignore[attr-defined]
            raise ValueError(
                f"environment.actions names {len(self.actions)} actions, but {config.id} has "
                f"{self.environment.action_space.n}; name each of them in order"  # type: ignore[attr-defined]
            )
        if not self.default_action:
            self.default_action = self.actions[0] if self.actions else ""
        if self.actions and self.default_action not in self.actions:
            raise ValueError(
                f"environment.default_action is {self.default_action!r}; it must be one of {', '.join(self.actions)}"
            )

    async def reset(self, seed: int) -> Observation:
        observation, info = await self._call(lambda: self.environment.reset(seed=seed), pair=2)
        return self._observe(observation, info)

    async def step(self, action: str) -> Feedback:
        played = self.actions.index(action) if self._discrete else action
        answer = await self._call(lambda: self.environment.step(played), pair=5)
        observation, reward, terminated, truncated, info = answer
        if not isinstance(info, Mapping):
            raise self._failure(f"its info is {info!r}")
        try:
            reward = float(reward)
        except (TypeError, ValueError):
            raise self._failure(f"its reward is {reward!r}") from None
        if not math.isfinite(reward):
            raise self._failure(f"its reward is {reward}")
        terminated, truncated = bool(terminated), bool(truncated)
        success = info.get("success")
        if self.config.reward == "binary":
            if success is None and (terminated or truncated):
                raise ValueError(
                    f"environment.reward=binary needs info['success'] at the end of an episode, which {self.config.id} "
                    "does not give; use environment.reward=native"
                )
            reward = float(bool(success)) if terminated or truncated else 0.0
        success = None if success is None else bool(success)
        progression = info.get("progression", success)
        try:
            progression = None if progression is None else float(progression)
        except (TypeError, ValueError):
            raise self._failure(f"its info['progression'] is {progression!r}") from None
        if progression is not None and not 0 <= progression <= 1:
            raise self._failure(f"its info['progression'] is {progression}, not between 0 and 1")
        truncated = truncated and not terminated
        return Feedback(self._observe(observation, info), reward, terminated, truncated, success, progression)

    def expert(self) -> str:
        """What the environment's own expert would play now."""
        return self.environment.unwrapped.expert()  # type: ignore[attr-defined]

    def renew(self) -> None:
        """Put a fresh environment in the place of a broken one; a hung call is left to its thread."""
        self.close()
        self.environment = make_environment(self.config, self.task)
        self.translate = self._attribute("translate", None)

    def close(self) -> None:
        """Let go of the environment: in its own thread, where it has one, since it may hang there."""
        if self._thread is not None:
            self._calls.put(None)
            self._calls = queue.SimpleQueue()
            self._thread = None
        else:
            _close(self.environment)

    async def _call(self, function: Callable[[], Any], pair: int) -> Any:
        try:
            answer = await self._in_thread(function) if self._threaded else function()
        except EnvironmentFailure:
            raise
        except Exception as error:
            raise self._failure(f"{type(error).__name__}: {error}") from error
        if not isinstance(answer, tuple) or len(answer) != pair:
            raise self._failure(f"it answered {answer!r:.80} instead of {pair} values")
        return answer

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        """Run it in this environment's own thread, since some libraries must be called from one thread only."""
        if self._thread is None:
            self._thread = threading.Thread(target=_serve, args=(self._calls, self.environment), daemon=True)
            self._thread.start()
        future = asyncio.get_running_loop().create_future()
        self._calls.put((function, future))
        try:
            # Not asyncio.timeout: what was answered while the model kept the loop busy was answered in time.
            done, _ = await asyncio.wait({future}, timeout=self.config.timeout_s)
            if not done:
                raise self._failure(f"a call took longer than environment.timeout_s={self.config.timeout_s:g}")
            return future.result()
        finally:
            future.cancel()

    def _observe(self, observation: Any, info: Mapping[str, Any]) -> Observation:
        parts = observation if isinstance(observation, Mapping) else {"text": observation}
        text = parts.get("text")
        if not isinstance(text, str):
            raise self._failure(f"its observation is {observation!r:.80}, neither text nor a dict with `text`")
        cue = "\n".join(part for part in (str(parts.get("cue", "")), self._cue) if part)
        return Observation(text, cue, str(parts.get("instructions", self.config.instructions)))

    def _attribute(self, name: str, default: Any) -> Any:
        return getattr(self.environment.unwrapped, name, None) or default

    def _failure(self, why: str) -> EnvironmentFailure:
        return EnvironmentFailure(f"environment {self.config.id} ({self.task}) failed: {why}")


def _serve(calls: _Calls, environment: gymnasium.Env[Any, Any]) -> None:
    """A thread's life: answer calls in order until told to stop, then close the environment."""
    while (call := calls.get()) is not None:
        function, future = call
        try:
            answer, error = function(), None
        except Exception as raised:
            answer, error = None, raised
        loop = future.get_loop()
        if not loop.is_closed():
            loop.call_soon_threadsafe(_answer, future, answer, error)
    _close(environment)


def _close(environment: gymnasium.Env[Any, Any]) -> None:
    """What a broken environment says at its end concerns nobody."""
    with contextlib.suppress(Exception):
        environment.close()


def _answer(future: "asyncio.Future[Any]", answer: Any, error: Exception | None) -> None:
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(answer)
