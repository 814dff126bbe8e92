"""Makes one environment, and checks and translates what it answers.

Whatever goes wrong inside an environment (it raises, or answers nonsense) leaves here as EnvironmentFailure; a mistake
in the configuration is a ValueError. Knows nothing of threads, processes and time limits.
"""

import contextlib
import copy
import difflib
import importlib
import math
from asyncio import CancelledError
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium

from turnwise.components import load_object
from turnwise.config import EnvironmentConfig
from turnwise.failures import EnvironmentFailure, place
from turnwise.parse import normalise
from turnwise.surrogates import encodable
from turnwise.types import Feedback, Observation

_SHOWN = {"text", "cue", "instructions"}  # of an observation
MAX_CHARACTERS = 1_000_000  # of an observation: more than any model reads


@dataclass(frozen=True)
class Offer:
    """What an environment offers to those who play it."""

    actions: list[str]  # legal action texts; empty: any text
    default_action: str
    translates: bool  # it knows near-misses of its actions
    has_expert: bool


def make_environment(config: EnvironmentConfig, task: str) -> gymnasium.Env[Any, Any]:
    """The environment of a task, by `module:Class` or by Gymnasium id. A mistake is a ValueError."""
    kwargs = copy.deepcopy({**config.kwargs, **config.tasks[task]})  # as an environment may use them up
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
        raise ValueError(
            f"environment.id={config.id} does not take the arguments {kwargs}: {error}{place(error)}; they are those "
            f"of environment.kwargs and environment.tasks.{task}"
        ) from error
    if not _shows_text(getattr(environment, "observation_space", None)):
        raise ValueError(
            f"environment.id is {config.id!r}, which shows images or numbers alone; "
            "wrap it in an environment whose observation is text, or a dict with `text`"
        )
    return environment


def try_environment(config: EnvironmentConfig, task: str) -> None:
    """Make the environment of a task, and let go of it. Whatever hinders that is a ValueError."""
    try:
        _let_go(make_environment(config, task))
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"environment {config.id} ({task}) failed: {type(error).__name__}: {error!s:.500}") from error


def _let_go(environment: Any) -> None:
    """What an environment says at its end concerns nobody: it may be broken, or have no end to speak of."""
    with contextlib.suppress(Exception, SystemExit, CancelledError):
        environment.close()


def _shows_text(space: gymnasium.Space[Any] | None) -> bool:
    """False only where it is certain: an environment of texts may do without a space, or have one of its own kind."""
    if isinstance(space, gymnasium.spaces.Dict):
        return "text" in space.spaces
    spaces = gymnasium.spaces
    return not isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary))


class CheckedEnvironment:
    """An environment of one task that answers in records."""

    def __init__(self, config: EnvironmentConfig, task: str):
        """A mistake in the configuration is a ValueError."""
        self.config = config
        with _blamed(ValueError):
            self.environment = make_environment(config, task)
            space = getattr(self.environment, "action_space", None)  # an environment of texts may do without
            offered = self._attribute("actions")
            once = isinstance(offered, Iterator) or (callable(offered) and not isinstance(offered, Iterable))
            if once or isinstance(offered, (str, set, frozenset)):  # a set has another order in each process
                raise ValueError(f"the actions of {config.id} are {offered!r:.200}; they must be a list of texts")
            self._listed = _texts(offered)
            distinct = self._listed is not None and len({*self._listed}) == len(self._listed)
            if isinstance(offered, (list, tuple, range)) and not distinct and not config.actions:
                raise ValueError(f"the actions of {config.id} are {offered!r:.200}; they must be texts, each one once")
            self.actions: list[str] = [*(self._listed or config.actions)]
            self.default_action: str = self._attribute("default_action") or config.default_action
        for key, own in (("actions", self.actions), ("default_action", self.default_action)):
            if (asked := getattr(config, key)) and asked != own:
                raise ValueError(f"environment.{key} is {asked!r}, but {config.id} has its own; leave it out")
        self._first: int | None = None  # of the numbers that stand for actions; None: they are played as texts
        if isinstance(space, gymnasium.spaces.Discrete):
            self._first = int(space.start)
            if len(self.actions) != space.n:
                raise ValueError(
                    f"environment.actions names {len(self.actions)} actions, but {config.id} has {space.n}; "
                    "name each of them in order"
                )
        if not self.default_action:
            self.default_action = self.actions[0] if self.actions else ""
        if self.actions and self.default_action not in self.actions:
            raise ValueError(
                f"environment.default_action is {self.default_action!r}; it must be one of {', '.join(self.actions)}"
            )

    def offer(self) -> Offer:
        with _blamed():
            translates, has_expert = (self._attribute(name) is not None for name in ("translate", "expert"))
            return Offer([*self.actions], self.default_action, translates, has_expert)

    def reset(self, seed: int) -> Observation:
        with _blamed():
            observation, info = _tuple("reset", self.environment.reset(seed=seed), "observation, info")
            shown = self._observe(observation, info)
        self._refuse_other_actions()
        return shown

    def step(self, action: str) -> Feedback:
        with _blamed():
            played = action if self._first is None else self._first + self.actions.index(action)
            answer = self.environment.step(played)
            parts = "observation, reward, terminated, truncated, info"
            observation, reward, terminated, truncated, info = _tuple("step", answer, parts)
            if not isinstance(info, Mapping):
                raise EnvironmentFailure(f"its info is {info!r:.80}")
            reward = _number("reward", reward)
            terminated, truncated = _flag("terminated", terminated), _flag("truncated", truncated)
            success = None if info.get("success") is None else _flag("info['success']", info["success"])
            progression = info.get("progression", success)
            if progression is not None:
                progression = _number("info['progression']", progression)
                if not 0 <= progression <= 1:
                    raise EnvironmentFailure(f"its info['progression'] is {progression}, not between 0 and 1")
            told = info.get("figures", {})
            if not isinstance(told, Mapping):
                raise EnvironmentFailure(f"its info['figures'] is {told!r:.80}, not a dict of numbers by name")
            figures = {str(name): _number(f"info['figures'][{name!r}]", value) for name, value in told.items()}
            shown = self._observe(observation, info)
        self._refuse_other_actions()
        if self.config.reward == "binary":
            reward = self._verdict(success) if terminated or truncated else 0.0
        return Feedback(shown, reward, terminated, truncated and not terminated, success, progression, figures)

    def translate(self, said: str) -> str | None:
        """The legal action that a near-miss means; None where it means none."""
        plain = normalise(said)
        with _blamed():
            meaning = self._attribute("translate")(plain) if plain else None
            if meaning is not None and meaning not in self.actions:
                raise EnvironmentFailure(f"it translated {said!r:.80} to {meaning!r:.80}, which is no legal action")
            return meaning

    def expert(self) -> str:
        """What the environment's own expert would play now."""
        with _blamed():
            advice = self._attribute("expert")()
            if not isinstance(advice, str) or (self.actions and advice not in self.actions):
                raise EnvironmentFailure(f"its expert would play {advice!r:.80}, which is no legal action")
            return advice

    def close(self) -> None:
        _let_go(self.environment)

    def _observe(self, observation: Any, info: Mapping[str, Any]) -> Observation:
        parts = observation if isinstance(observation, Mapping) else {"text": observation}
        text = parts.get("text")
        if not isinstance(text, str):
            raise EnvironmentFailure(f"its observation is {observation!r:.80}, neither text nor a dict with `text`")
        for key in parts.keys() - _SHOWN:
            if meant := difflib.get_close_matches(str(key), _SHOWN - parts.keys(), n=1, cutoff=0.8):
                raise EnvironmentFailure(f"its observation has {key!r}, which nobody sees; did you mean {meant[0]!r}?")
        beside = {"cue": "", "instructions": self.config.instructions}
        for key in beside:
            if not isinstance(told := parts.get(key), str | None):
                raise EnvironmentFailure(f"its observation has {told!r:.80} as {key}, which is no text")
            beside[key] = beside[key] if told is None else told
        shown = Observation(*(encodable(part) for part in (text, beside["cue"], beside["instructions"])))
        characters = len(shown.text) + len(shown.cue) + len(shown.instructions)
        if characters > MAX_CHARACTERS:
            raise EnvironmentFailure(f"its observation has {characters:,} characters, more than {MAX_CHARACTERS:,}")
        return shown

    def _refuse_other_actions(self) -> None:
        """What is legal is asked once, when the environment is made: who plays, and what reads replies, go by that."""
        with _blamed():
            now = _texts(self._attribute("actions"))
        if now != self._listed:
            raise ValueError(
                f"the actions of {self.config.id} were {self._listed!r:.80}, and are {now!r:.80} after a reset or a "
                "turn; list all that there ever are, or leave `actions` out, and name the legal ones in the text"
            )

    def _verdict(self, success: bool | None) -> float:
        if success is None:
            raise ValueError(
                f"environment.reward=binary needs info['success'] at the end of an episode, which {self.config.id} "
                "does not give; use environment.reward=native"
            )
        return float(success)

    def _attribute(self, name: str) -> Any:
        """Of the environment, or of the outermost wrapper around it that has one; None where nobody has."""
        layer = self.environment
        while (found := getattr(layer, name, None)) is None and isinstance(layer, gymnasium.Wrapper):
            layer = layer.env
        return found


def _texts(offered: Any) -> list[str] | None:
    """The actions that an environment lists as texts; None where it lists none, or what they are is its own affair."""
    listed = list(offered) if isinstance(offered, Iterable) and not isinstance(offered, Iterator) else []
    return listed if all(isinstance(action, str) for action in listed) else None


@contextlib.contextmanager
def _blamed(*mistakes: type[Exception]) -> Iterator[None]:
    """Whatever is raised in here, but for `mistakes`, is a failure of the environment; so is its wish to exit, and a
    cancellation, which asyncio would take for its own."""
    try:
        yield
    except (EnvironmentFailure, *mistakes):
        raise
    except (Exception, SystemExit, CancelledError) as error:
        # A generator, as this one is, cannot pass on what a StopIteration has caused.
        cause = None if isinstance(error, StopIteration) else error
        raise EnvironmentFailure(f"{type(error).__name__}: {error!s:.500}{place(error)}") from cause


def _tuple(call: str, answer: Any, parts: str) -> tuple[Any, ...]:
    if not isinstance(answer, tuple) or len(answer) != 1 + parts.count(","):
        raise EnvironmentFailure(f"its {call} returned {answer!r:.80} instead of ({parts})")
    return answer


def _number(name: str, value: Any) -> float:
    with contextlib.suppress(TypeError, ValueError):
        if not isinstance(value, (str, bytes)) and math.isfinite(number := float(value)):
            return number
    raise EnvironmentFailure(f"its {name} is {value!r:.80}, which is no finite number")


def _flag(name: str, value: Any) -> bool:
    """Yes or no, as numpy too may say it; "no" is neither."""
    with contextlib.suppress(TypeError, ValueError):
        if not isinstance(value, (str, bytes)) and value in (False, True):
            return bool(value)
    raise EnvironmentFailure(f"its {name} is {value!r:.80}, which is neither True nor False")
