"""Arguments against a JSON Schema, for tools that bring their own."""

from collections.abc import Callable, Mapping
from typing import Any

import jsonschema
from referencing import Registry

_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTED = ("prefixItems", "anyOf", "oneOf", "allOf")
_SINGLE = ("items", "additionalProperties", "contains", "not", "propertyNames", "if", "then", "else")

Schema = dict[str, Any]


def rewrite(schema: Any, change: Callable[[Schema], Schema]) -> Any:
    """The schema with `change` applied to it and to every schema inside it, innermost first."""
    if not isinstance(schema, Mapping):
        return schema  # true and false are schemas too
    found = dict(schema)
    for key, part in found.items():
        if key in _NAMED and isinstance(part, Mapping):
            found[key] = {name: rewrite(one, change) for name, one in part.items()}
        elif key in _LISTED and isinstance(part, list):
            found[key] = [rewrite(one, change) for one in part]
        elif key in _SINGLE:
            found[key] = rewrite(part, change)
    return change(found)


def _nullable(schema: Schema) -> Schema:
    """`nullable: true` as JSON Schema says it."""
    if schema.get("nullable") is True:
        return {"anyOf": [{key: part for key, part in schema.items() if key != "nullable"}, {"type": "null"}]}
    return schema


def validator(parameters: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], None]:
    """A check of arguments that raises a ValueError of one line. References are followed inside the schema only."""
    schema = rewrite(parameters, _nullable)
    if "properties" in schema:
        schema.setdefault("additionalProperties", False)
    checker = jsonschema.Draft202012Validator(schema, registry=Registry())

    def check(arguments: Mapping[str, Any]) -> None:
        problems = sorted(checker.iter_errors(dict(arguments)), key=lambda error: list(map(str, error.absolute_path)))
        if problems:
            raise ValueError(one_line([(list(error.absolute_path), error.message) for error in problems]))

    return check


def one_line(problems: list[tuple[list[Any], str]]) -> str:
    """Problems with their places as one line; of many, the first five."""
    said = [f"{'.'.join(map(str, place))}: {text[:200]}" if place else text[:200] for place, text in problems[:5]]
    more = len(problems) - len(said)
    return " ".join("; ".join(said + ([f"and {more} more"] if more else [])).split())
