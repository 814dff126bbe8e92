"""Parts that plug in, by name: those that ship, and any other as `module:attribute`."""

from __future__ import annotations

import copy
import difflib
import functools
import importlib
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from turnwise.failures import place

# Short names for what ships; anything else is named `module:attribute`.
COMPONENTS = {
    "memory": {
        "window": "turnwise.memory.window:Window",
        "full": "turnwise.memory.full:Full",
        "note": "turnwise.memory.note:Note",
    },
    "agent": {
        "gym": "turnwise.agents.gym:Gym",
        "single_turn": "turnwise.agents.single_turn:SingleTurn",
        "tool": "turnwise.agents.tool:ToolAgent",
        "openai": "turnwise.agents.openai:OpenAIAgent",
        "langgraph": "turnwise.agents.langgraph:LangGraphAgent",
    },
    "parser": {"think_act": "turnwise.parse:ThinkAct"},
    "engine": {
        "local": "turnwise.engines.make:local",
        "vllm": "turnwise.engines.make:vllm",
        "vllm_inside": "turnwise.engines.make:vllm_inside",
        "sglang": "turnwise.engines.make:sglang",
    },
    "advantage": {
        "dual_gae": "turnwise.advantages.gae:DualGAE",
        "gae": "turnwise.advantages.gae:token_gae",
        "monte_carlo": "turnwise.advantages.gae:monte_carlo",
        "bi_level_gae": "turnwise.advantages.bilevel:BiLevelGAE",
        "turn_gae": "turnwise.advantages.turn:TurnGAE",
        "grpo": "turnwise.advantages.grpo:GRPO",
        "rloo": "turnwise.advantages.rloo:RLOO",
        "reinforce_plus_plus": "turnwise.advantages.reinforce:ReinforcePlusPlus",
        "reinforce_plus_plus_baseline": "turnwise.advantages.reinforce:ReinforcePlusPlusBaseline",
        "gigpo": "turnwise.advantages.gigpo:GiGPO",
    },
    "reward": {
        "gsm8k": "turnwise.rewards.gsm8k:gsm8k",
        "exact_match": "turnwise.rewards.exact:exact_match",
        "math_equal": "turnwise.rewards.numbers:math_equal",
    },
    "data.generate": {"arithmetic": "turnwise.data.arithmetic:Arithmetic"},
    "data.convert": {"gsm8k": "turnwise.data.gsm8k:Gsm8k"},
    "log.trackers": {"tensorboard": "turnwise.trackers.tensorboard:TensorBoard"},
}
# Arguments that the framework passes by itself.
_GIVEN = {
    "agent": {"setting"},
    "engine": {"trained"},
    "log.trackers": {"folder", "done"},
    "parser": {"actions", "default"},
    "reward": {"sample", "messages", "text", "solution_str", "data_source", "ground_truth", "extra_info"},
}


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Component(BaseModel):
    """A part that plugs in: `use` names it, the other keys are its arguments. A name alone will do."""

    model_config = ConfigDict(extra="allow")

    use: str

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, given: Any) -> Any:
        return {"use": given} if isinstance(given, str) else given

    @property
    def arguments(self) -> dict[str, Any]:
        return copy.deepcopy(self.model_extra or {})  # as whoever is made of them may use them up

    def make(self, kind: str, **given: Any) -> Any:
        """Build the part; `given` is what the framework adds."""
        factory = self._load(kind)
        arguments = self._checked(kind, factory)
        try:
            return factory(**arguments, **given)
        except TypeError as error:
            told = f"{error}{place(error)}"
            raise ValueError(f"{kind}: {self.use} cannot be made of {self.arguments}: {told}") from error

    def find(self, kind: str) -> Callable[..., Any]:
        """What makes the part; it has every argument that is given here."""
        factory = self._load(kind)
        self._checked(kind, factory)
        return factory

    def bind(self, kind: str) -> Callable[..., Any]:
        """The function that `use` names, its other keys filled in; of a class, an object made of them.

        By the names of its parameters it asks for any of what the framework gives to this kind, and for no more.
        """
        function = self._load(kind)
        if inspect.isclass(function):
            function = self.make(kind)
            if not callable(function):
                raise ValueError(f"{kind}.use is {self.use!r}, whose objects cannot be called; give it a __call__")
        else:
            function = functools.partial(function, **self._checked(kind, function))
        for name, one in inspect.signature(function).parameters.items():
            if one.default is one.empty and one.kind not in _VARIADIC and name not in _GIVEN[kind]:
                raise ValueError(
                    f"{kind}: {self.use} asks for {name}, which nobody gives; set {kind}.{name}, "
                    f"or ask for {', '.join(sorted(_GIVEN[kind]))}"
                )
        return function

    def _load(self, kind: str) -> Callable[..., Any]:
        factory = load_object(f"{kind}.use", COMPONENTS[kind].get(self.use, self.use), COMPONENTS[kind])
        if not callable(factory):
            raise ValueError(f"{kind}.use is {self.use!r}, which is no class")
        return factory

    def _checked(self, kind: str, factory: Callable[..., Any]) -> dict[str, Any]:
        """The arguments, each of them one that the factory has, and of the type that it is declared as."""
        allowed = {
            name: one.annotation
            for name, one in _parameters(factory).items()
            if name not in _GIVEN.get(kind, set()) and one.kind not in _VARIADIC
        }
        for key in self.arguments:
            if key not in allowed:
                raise ValueError(f"unknown key {kind}.{key}{nearest(key, allowed)}")
        return {key: _typed(f"{kind}.{key}", value, allowed[key]) for key, value in self.arguments.items()}


def _parameters(factory: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(factory, eval_str=True).parameters
    except (NameError, AttributeError):  # types that are there for type checkers alone
        return inspect.signature(factory).parameters


def _typed(key: str, value: Any, annotation: Any) -> Any:
    """The value as its parameter is declared, such as 1 for a float; whatever pydantic cannot tell is left as it is."""
    if annotation is inspect.Parameter.empty or isinstance(annotation, str):
        return value
    try:
        adapter = TypeAdapter(annotation)
    except (PydanticSchemaGenerationError, PydanticUserError):
        return value
    try:
        return adapter.validate_python(value, strict=isinstance(value, bool))  # true is no number
    except ValidationError as error:
        first = error.errors()[0]
        inner = "".join(f".{part}" for part in first["loc"])
        raise ValueError(fault(key + inner, first["input"], first["msg"])) from error


def fault(key: str, value: Any, message: str) -> str:
    """What pydantic says of a value, as a sentence of ours."""
    message = message.removeprefix("Value error, ").partition(", unable to parse")[0]
    message = message.replace("Input should be", "it must be").replace("an instance of Sequence", "a list")
    if isinstance(value, str) and ("as a Sequence" in message or "valid list" in message):
        message = f"it must be a list, such as [{value}]"
    return f"{key} is {'null' if value is None else repr(value)}; {message[0].lower()}{message[1:]}"


def load_object(key: str, dotted: str, known: Mapping[str, str] = types.MappingProxyType({})) -> Any:
    """What `module:attribute` names."""
    module, colon, name = dotted.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), name)):
        meant = nearest(dotted, known)
        own = " Or" if meant.endswith("?") else ";"
        raise ValueError(f"{key} is {dotted!r}{meant}{own} write your own as module:Class")
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise ValueError(f"{key} is {dotted!r}, but {error}; install it, or put it on PYTHONPATH") from error
    except Exception as error:  # of whoever wrote it
        told = f"{type(error).__name__}: {error}{place(error)}"
        raise ValueError(f"{key} is {dotted!r}, which cannot be imported: {told}") from error
    if not hasattr(found, name):
        raise ValueError(f"{key} is {dotted!r}, but the module {module} has no {name}")
    return getattr(found, name)


def with_colon(dotted: str) -> str:
    """`package.module.Class`, as other frameworks write it, as `package.module:Class`."""
    return dotted if ":" in dotted else ":".join(dotted.rsplit(".", 1))


def nearest(word: str, known: Any, path: str = "") -> str:
    """What may have been meant, as the tail of a sentence; `path` stands before each of the known."""
    close = difflib.get_close_matches(word, list(known), n=1)
    if close:
        return f"; did you mean {path + close[0]!r}?"
    return f"; there are {', '.join(sorted(known))}" if known else ""
