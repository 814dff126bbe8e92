"""Arithmetic without eval: the expression is parsed, and only numbers, operators and a few functions are walked."""

import ast
import math
import operator
import warnings
from collections.abc import Callable
from typing import Any

from turnwise.tools.function import function_tool

_LENGTH = 1000  # characters of an expression
_BITS = 4096  # of a whole number, about 1,200 digits

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_CONSTANTS = {"pi": math.pi, "e": math.e}

# Python warns its user of numbers glued to words, which here the model wrote. Once for all, as threads share filters.
warnings.filterwarnings("ignore", category=SyntaxWarning, module="<expression>")


@function_tool
def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression.

    Args:
        expression: Numbers, + - * / // % **, parentheses, pi, e, and abs, min, max, round, sqrt, exp, log, sin, cos,
            tan; e.g. "(3+4)*5".
    """
    return str(calculate(expression))


def calculate(expression: str) -> int | float:
    """The value of an expression. Raises ValueError, of one line, for whatever is not plain arithmetic or too large."""
    if len(expression) > _LENGTH:
        raise ValueError(f"the expression has {len(expression)} characters; {_LENGTH} are allowed")
    try:
        return _value(ast.parse(expression.strip(), "<expression>", mode="eval").body)
    except ZeroDivisionError:
        raise ValueError("division by zero") from None
    except OverflowError:
        raise ValueError("a number is too large") from None
    except (RecursionError, MemoryError):
        raise ValueError("the expression is nested too deeply") from None
    except (SyntaxError, TypeError):
        raise ValueError("this is not an arithmetic expression") from None


def _value(node: ast.expr) -> int | float:
    if isinstance(node, ast.Constant):
        return _number(node.value)
    if isinstance(node, ast.Name) and node.id in _CONSTANTS:
        return _CONSTANTS[node.id]
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        return _UNARY[type(node.op)](_value(node.operand))
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow):
            return _power(left, right)
        if type(node.op) in _BINARY:
            return _number(_BINARY[type(node.op)](left, right))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
        if node.keywords or any(isinstance(one, ast.Starred) for one in node.args):
            raise ValueError(f"{node.func.id} takes plain numbers")
        return _number(_FUNCTIONS[node.func.id](*map(_value, node.args)))
    raise ValueError(f"{ast.unparse(node)[:40]!r} is not allowed in an arithmetic expression")


def _number(value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r:.40} is not a number that can be used here")
    if isinstance(value, int) and value.bit_length() > _BITS:
        raise OverflowError
    if isinstance(value, float) and not math.isfinite(value):
        raise OverflowError
    return value


def _power(base: int | float, exponent: int | float) -> int | float:
    """Whole numbers are measured before they are computed."""
    if isinstance(base, int) and isinstance(exponent, int) and (base.bit_length() - 1) * abs(exponent) > _BITS:
        raise OverflowError
    return _number(base**exponent)


def _round(value: int | float, digits: int | float = 0) -> int | float:
    if not isinstance(digits, int) or abs(digits) > 100:
        raise ValueError("round takes at most 100 digits")
    return round(value, digits) if digits else round(value)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{"abs": abs, "min": min, "max": max, "round": _round, "sqrt": math.sqrt, "exp": math.exp, "log": math.log},
    **{"sin": math.sin, "cos": math.cos, "tan": math.tan},
}
