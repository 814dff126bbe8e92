"""The JSON Schema of a function, from its annotations and its docstring, and the check of arguments against it.

Types go through pydantic, so whatever it knows is known here: items of lists, limits of `Field`, enums, dataclasses,
models. Descriptions come from a docstring in Google, NumPy or reST style.
"""

import functools
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, Optional, get_args, get_origin

import docstring_parser
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import to_jsonable_python
from typing_extensions import TypedDict

from turnwise.tools.records import ToolContext
from turnwise.tools.validate import Schema, one_line, rewrite

_CHOICES = re.compile(r"\s*\(choices:\s*(\[.*\])\s*\)\s*$", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Signature:
    """What a function takes, as the model sees it."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    adapter: TypeAdapter[dict[str, Any]]
    positional_only: Mapping[str, Any]  # name -> default
    context: str | None  # the parameter that receives the ToolContext

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as values of the annotated types. Raises ValueError, of one line.

        JSON is read strictly: "2" is no integer. A member of an enum is made of its value, a dataclass of an object.
        """
        try:
            return self.adapter.validate_json(json.dumps(arguments), strict=True)
        except ValidationError as error:
            problems = error.errors(include_url=False, include_context=False)
            raise ValueError(one_line([(list(one["loc"]), _said(one)) for one in problems])) from error

    def bind(self, values: dict[str, Any], context: ToolContext) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments of the call."""
        named = {**values, **({self.context: context} if self.context else {})}
        return [named.pop(name, default) for name, default in self.positional_only.items()], named


def _said(problem: Any) -> str:
    if problem["type"] in ("missing", "extra_forbidden"):
        return "is missing" if problem["type"] == "missing" else "there is no such parameter"
    return f"{problem['msg']}, not {problem['input']!r:.80}"


def read_signature(function: Callable[..., Any]) -> Signature:
    """Raises one ValueError that names everything a function lacks."""
    inner, bound = _unwrap(function)
    name = getattr(inner, "__name__", type(inner).__name__)
    doc = docstring_parser.parse(inspect.getdoc(inner) or "")
    described = {one.arg_name.lstrip("*"): " ".join((one.description or "").split()) for one in doc.params}
    problems = [] if doc.short_description else ["it has no docstring that says what it does"]
    context, shown = None, {}
    try:
        signature = inspect.signature(function, eval_str=True)
    except (NameError, TypeError, ValueError) as error:
        raise ValueError(f"the function {name} cannot be a tool: {error}") from error
    every = signature.parameters.values()
    for parameter in every:
        if parameter.annotation is ToolContext or ToolContext in get_args(parameter.annotation):
            context = parameter.name
        elif parameter.name not in bound:
            shown[parameter.name] = parameter
            problems += _problems(parameter, described.get(parameter.name, ""))
    if problems:
        raise ValueError(f"the function {name} cannot be a tool: {'; '.join(problems)}")
    adapter, parameters = _adapt(name, shown, described)
    positional = {one.name: one.default for one in every if one.kind is one.POSITIONAL_ONLY}
    text = "\n\n".join(part for part in (doc.short_description, doc.long_description) if part)
    return Signature(name, text, parameters, adapter, positional, context)


def _unwrap(function: Callable[..., Any]) -> tuple[Any, set[str]]:
    """The function itself, and the parameters that a partial has filled by name."""
    bound: set[str] = set()
    inner: Any = function
    while isinstance(inner, functools.partial):
        bound |= set(inner.keywords)
        inner = inner.func
    return inner, bound


def _problems(parameter: inspect.Parameter, description: str) -> Iterator[str]:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        yield f"{parameter} takes any number of arguments, which no schema can say; use {parameter.name}: list[T]"
        return
    if parameter.annotation is parameter.empty:
        yield f"{parameter.name} has no annotation"
    if not (description or _note(parameter.annotation)):
        yield f"{parameter.name} is not described under Args"


def _note(annotation: Any) -> str:
    """The text of Annotated[T, "text"], or of its Field."""
    notes = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
    texts = (note if isinstance(note, str) else getattr(note, "description", None) for note in notes)
    return next((text for text in texts if isinstance(text, str)), "")


def _adapt(
    name: str, shown: Mapping[str, inspect.Parameter], described: Mapping[str, str]
) -> tuple[TypeAdapter[dict[str, Any]], Schema]:
    """One adapter for all arguments, so that the function's own defaults stay the function's."""
    hints: dict[str, Any] = {}
    for parameter in shown.values():
        text = described.get(parameter.name, "")
        kind = parameter.annotation
        if parameter.default is None and kind is not Any:
            kind = Optional[kind]  # noqa: UP045  # a Literal made of a text knows no |
        if choices := _CHOICES.search(text):
            kind, text = Literal[tuple(_listed(name, choices[1]))], text[: choices.start()]
        kind = Annotated[kind, Field(description=text or _note(kind))]
        hints[parameter.name] = kind if parameter.default is parameter.empty else NotRequired[kind]
    record = TypedDict(name, hints)  # type: ignore[operator]  # made of what the function has
    record.__pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)  # type: ignore[attr-defined]
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(record)
        schema = adapter.json_schema()
        schema = rewrite(_inlined(schema, schema.pop("$defs", {})), _plain)
    except (PydanticUserError, RecursionError) as error:
        raise ValueError(f"the function {name} cannot be a tool: {str(error).splitlines()[0]}") from error
    properties = schema.get("properties", {})
    for key, parameter in shown.items():
        if parameter.default is not parameter.empty:
            try:
                properties[key]["default"] = to_jsonable_python(parameter.default)
            except ValueError:
                continue  # a default that no JSON can say is the function's own affair
    return adapter, {"type": "object", "properties": properties, "required": schema.get("required", [])}


def _listed(name: str, choices: str) -> list[Any]:
    try:
        listed = json.loads(choices)
    except ValueError as error:
        raise ValueError(f"the function {name} cannot be a tool: its choices {choices:.80} are no JSON list") from error
    if not listed:
        raise ValueError(f"the function {name} cannot be a tool: it has a list of choices, which is empty")
    return listed


def _inlined(node: Any, definitions: Mapping[str, Any], within: tuple[str, ...] = ()) -> Any:
    """The schema with its references written out, because chat templates follow none."""
    if isinstance(node, list):
        return [_inlined(one, definitions, within) for one in node]
    if not isinstance(node, Mapping):
        return node
    reference = node.get("$ref")
    if not isinstance(reference, str):
        return {key: _inlined(one, definitions, within) for key, one in node.items()}
    target = reference.rpartition("/")[2]
    if target in within:
        raise PydanticUserError(f"the type {target} contains itself, which a tool's schema cannot", code=None)
    beside = {key: one for key, one in node.items() if key != "$ref"}
    return {**_inlined(definitions[target], definitions, (*within, target)), **beside}


def _plain(schema: Schema) -> Schema:
    """As chat templates like it: no titles, `nullable` for an optional type, one list for a choice of plain types."""
    schema = {key: part for key, part in schema.items() if key != "title"}
    if "const" in schema:
        schema["enum"] = [schema.pop("const")]
    if isinstance(schema.get("additionalProperties"), bool):
        schema.pop("additionalProperties")
    parts = schema.get("anyOf")
    if not isinstance(parts, list):
        return schema
    rest = [part for part in parts if part != {"type": "null"}]
    found = {key: part for key, part in schema.items() if key != "anyOf"}
    if len(rest) == 1:
        found = {**rest[0], **found}
    elif all(set(part) == {"type"} and isinstance(part["type"], str) for part in rest):
        found["type"] = [part["type"] for part in rest]
    else:
        found["anyOf"] = rest
    return {**found, "nullable": True} if len(rest) < len(parts) else found
