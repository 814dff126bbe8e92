"""One row a feature of a signature: the schema that is inferred, and the value that arrives."""

import enum
import functools
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Optional

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from turnwise.tools import ToolContext
from turnwise.tools.signature import read_signature


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: int = 0


class Box(TypedDict):
    corner: Point
    tags: list[str]


class Model(BaseModel):
    level: Annotated[int, Field(ge=1)] = 1


@dataclass
class Tree:
    children: list["Tree"]


def described(annotation: Any, default: Any = ...) -> Any:
    """A function with one described parameter of this type."""

    def function(value):  # type: ignore[no-untyped-def]
        """Use a value.

        Args:
            value: A value.
        """

    function.__annotations__["value"] = annotation
    if default is not ...:
        function.__defaults__ = (default,)
    return function


POINT = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}}}
POINT["required"] = ["x"]

# annotation, schema without its description, an argument, its value, and what transformers or verl make of it.
TYPES = [
    (str, {"type": "string"}, "a", "a", ""),
    (int, {"type": "integer"}, 2, 2, ""),
    (float, {"type": "number"}, 2, 2.0, ""),
    (bool, {"type": "boolean"}, True, True, ""),
    (list[str], {"type": "array", "items": {"type": "string"}}, ["a"], ["a"], "verl loses the items"),
    (
        list[list[int]],
        {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
        [[1]],
        [[1]],
        "verl loses the items",
    ),
    (list, {"type": "array", "items": {}}, [1, "a"], [1, "a"], "an object in both"),
    (
        dict[str, int],
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"a": 1},
        {"a": 1},
        "verl loses the values' type",
    ),
    (
        tuple[int, str],
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 2, "maxItems": 2},
        [1, "a"],
        (1, "a"),
        "an array of anything in verl",
    ),
    (Optional[int], {"type": "integer", "nullable": True}, None, None, "verl loses nullable"),  # noqa: UP045
    (int | None, {"type": "integer", "nullable": True}, 1, 1, "verl loses nullable"),
    (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}, "b", "b", ""),
    (Literal["a"], {"type": "string", "enum": ["a"]}, "a", "a", ""),
    (Literal[1, 2], {"type": "integer", "enum": [1, 2]}, 2, 2, ""),
    (int | str, {"type": ["integer", "string"]}, "a", "a", ""),
    (int | str | None, {"type": ["integer", "string"], "nullable": True}, None, None, ""),
    (Any, {}, {"a": [1]}, {"a": [1]}, "verl refuses it"),
    (Colour, {"type": "string", "enum": ["red", "blue"]}, "blue", Colour.BLUE, "an object in both"),
    (Point, POINT, {"x": 1}, Point(1), "an object in both"),
    (
        Box,
        {
            "type": "object",
            "properties": {"corner": POINT, "tags": {"type": "array", "items": {"type": "string"}}},
            "required": ["corner", "tags"],
        },
        {"corner": {"x": 1, "y": 2}, "tags": []},
        {"corner": Point(1, 2), "tags": []},
        "an object in both",
    ),
    (
        Model,
        {"type": "object", "properties": {"level": {"type": "integer", "minimum": 1, "default": 1}}},
        {"level": 3},
        Model(level=3),
        "an object in both",
    ),
    (Annotated[int, Field(ge=1, le=9)], {"type": "integer", "minimum": 1, "maximum": 9}, 9, 9, "limits are ignored"),
]


@pytest.mark.parametrize(("annotation", "schema", "argument", "value", "richer"), TYPES, ids=lambda x: str(x)[:40])
def test_a_type_becomes_a_schema_and_arguments_become_values(annotation, schema, argument, value, richer):
    signature = read_signature(described(annotation))
    assert signature.parameters["required"] == ["value"]
    (found,) = signature.parameters["properties"].values()
    assert found.pop("description") == "A value."
    assert found == schema
    assert signature.validate({"value": argument}) == {"value": value}


@pytest.mark.parametrize(
    ("default", "shown"), [(3, 3), (None, None), (Colour.RED, "red"), (Point(1), {"x": 1, "y": 0}), ((1, 2), [1, 2])]
)
def test_a_default_is_shown_and_stays_the_functions_own(default: Any, shown: Any):
    signature = read_signature(described(Any, default))
    assert signature.parameters == {
        "type": "object",
        "properties": {"value": {"description": "A value.", "default": shown}},
        "required": [],
    }
    assert signature.validate({}) == {}


def test_where_nothing_is_the_default_nothing_may_be_given():
    signature = read_signature(described(int, None))
    assert signature.parameters["properties"]["value"]["nullable"] is True
    assert signature.validate({"value": None}) == {"value": None}


def test_a_default_that_no_json_can_say_is_not_shown():
    assert "default" not in read_signature(described(Any, object())).parameters["properties"]["value"]


@pytest.mark.parametrize(
    ("annotation", "argument", "said"),
    [
        (int, "2", "value: Input should be a valid integer, not '2'"),
        (int, True, "value: Input should be a valid integer"),
        (int, None, "value: Input should be a valid integer"),
        (str, 2, "value: Input should be a valid string"),
        (list[int], ["a"], "value.0: Input should be a valid integer"),
        (Colour, "green", "value: Input should be 'red' or 'blue'"),
        (Point, {"y": 1}, "value.x: is missing"),
        (Annotated[int, Field(ge=1)], 0, "value: Input should be greater than or equal to 1"),
        (float, 10**400, "value: Input should be a finite number"),
    ],
)
def test_a_wrong_argument_is_refused_in_one_line(annotation: Any, argument: Any, said: str):
    with pytest.raises(ValueError) as refusal:
        read_signature(described(annotation)).validate({"value": argument})
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_every_wrong_argument_is_named():
    with pytest.raises(ValueError, match="value: is missing; other: there is no such parameter"):
        read_signature(described(int)).validate({"other": 1})


def test_a_note_describes_what_the_docstring_does_not():
    def function(a: Annotated[int, "from the note"], b: Annotated[int, Field(description="from the field")]) -> None:
        """Do it."""

    properties = read_signature(function).parameters["properties"]
    assert [one["description"] for one in properties.values()] == ["from the note", "from the field"]


def google(city: str, days: int = 2) -> None:
    """Get the weather.

    Of one city.

    Args:
        city (str): The city, e.g. "Oslo":
            any will do.
        days: How many. (choices: [1, 2])
    """


def numpy(city: str, days: int = 2) -> None:
    """Get the weather.

    Of one city.

    Parameters
    ----------
    city : str
        The city, e.g. "Oslo": any will do.
    days : int
        How many. (choices: [1, 2])
    """


def rest(city: str, days: int = 2) -> None:
    """Get the weather.

    Of one city.

    :param city: The city, e.g. "Oslo": any will do.
    :param days: How many. (choices: [1, 2])
    """


@pytest.mark.parametrize("function", [google, numpy, rest])
def test_docstrings_of_three_styles_say_the_same(function: Any):
    signature = read_signature(function)
    assert signature.description == "Get the weather.\n\nOf one city."
    assert signature.parameters["properties"] == {
        "city": {"type": "string", "description": 'The city, e.g. "Oslo": any will do.'},
        "days": {"type": "integer", "enum": [1, 2], "description": "How many.", "default": 2},
    }
    with pytest.raises(ValueError, match="days: Input should be 1 or 2"):
        signature.validate({"city": "Oslo", "days": 3})


def test_a_function_without_parameters():
    def now() -> None:
        """Tell the time."""

    assert read_signature(now).parameters == {"type": "object", "properties": {}, "required": []}


def test_all_that_a_function_lacks_is_said_at_once():
    def function(a, b: int, *rest: int, **named: int):  # type: ignore[no-untyped-def]
        pass

    with pytest.raises(ValueError) as refusal:
        read_signature(function)
    for part in (
        "the function function cannot be a tool: it has no docstring",
        "a has no annotation",
        "b is not described under Args",
        "use rest: list[T]",
        "**named",
    ):
        assert part in str(refusal.value)


def test_choices_that_cannot_be_read_are_refused():
    def function(a: str) -> None:
        """Do it.

        Args:
            a: One. (choices: [x, y])
        """

    with pytest.raises(ValueError, match=r"its choices \[x, y\] are no JSON list"):
        read_signature(function)
    function.__doc__ = (function.__doc__ or "").replace("[x, y]", "[]")
    with pytest.raises(ValueError, match="list of choices, which is empty"):
        read_signature(function)


def test_a_type_that_contains_itself_is_refused():
    with pytest.raises(ValueError, match="Tree contains itself"):
        read_signature(described(Tree))


def test_how_parameters_are_passed():
    def function(a: int, /, b: int, *, c: int = 3, context: ToolContext | None = None) -> Any:
        """Do it.

        Args:
            a: One.
            b: Two.
            c: Three.
        """
        return a, b, c, context

    signature = read_signature(function)
    assert list(signature.parameters["properties"]) == ["a", "b", "c"]  # the context is hidden
    here = ToolContext("e1")
    positional, named = signature.bind(signature.validate({"a": 1, "b": 2}), here)
    assert function(*positional, **named) == (1, 2, 3, here)


def test_a_context_may_be_passed_by_its_place():
    def function(context: ToolContext, a: int, /) -> Any:
        """Do it.

        Args:
            a: A number.
        """
        return context, a

    signature, here = read_signature(function), ToolContext("e1")
    positional, named = signature.bind(signature.validate({"a": 1}), here)
    assert function(*positional, **named) == (here, 1)


def test_partials_and_methods_are_functions():
    class Clock:
        def tell(self, zone: str) -> str:
            """Tell the time.

            Args:
                zone: Where.
            """
            return zone

    assert list(read_signature(Clock().tell).parameters["properties"]) == ["zone"]
    assert read_signature(functools.partial(Clock().tell, zone="UTC")).parameters["properties"] == {}
