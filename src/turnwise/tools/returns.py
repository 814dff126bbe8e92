"""What a tool may return, as one record.

| returned | response |
|---|---|
| ToolResponse | unchanged |
| str | the text |
| None, bool, number, list, dict | the text of its JSON |
| bytes, or anything with an image's `size` and `mode`, or an array's `shape` and `dtype` | an image |
| (response,), (response, reward), (response, reward, metrics) | the response by this table |
| anything else with a text of its own | `str` of it |

No reward means 0, no metrics means none.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from turnwise.tools.records import ToolResponse


def normalise(value: Any) -> tuple[ToolResponse, float, Mapping[str, Any]]:
    """Response, reward, metrics. Raises TypeError or ValueError where the tool's author made a mistake."""
    parts = value if isinstance(value, tuple) else (value,)
    if not 1 <= len(parts) <= 3:
        raise TypeError(f"it returned a tuple of {len(parts)}; return (response, reward, metrics) or fewer")
    response, reward, metrics = (*parts, None, None)[:3]
    if isinstance(reward, str | bytes | bytearray):  # of which Python would make numbers
        raise TypeError(f"its reward is {reward!r:.80}; return a number")
    reward = 0.0 if reward is None else float(reward)
    if not math.isfinite(reward):
        raise ValueError(f"its reward is {reward}")
    if metrics is not None and not isinstance(metrics, Mapping):
        raise TypeError(f"its metrics are {metrics!r:.80}; return a dict")
    return _response(response), reward, metrics or {}


def _response(value: Any) -> ToolResponse:
    if isinstance(value, ToolResponse):
        return value
    if isinstance(value, str):
        return ToolResponse(value)
    if isinstance(value, bytes | bytearray) or _is_image(value):
        return ToolResponse(image=[value])
    if value is None or isinstance(value, bool | int | float | list | dict):
        return ToolResponse(json.dumps(value, ensure_ascii=False, allow_nan=False, default=_text))
    return ToolResponse(_text(value))


def _text(value: Any) -> str:
    """Of an object that has one: what Python says of any other is its address."""
    if type(value).__str__ is object.__str__ and type(value).__repr__ is object.__repr__:
        raise TypeError(f"it returned {type(value).__name__}, which has no text; return a text, or what JSON can say")
    return str(value)


def _is_image(value: Any) -> bool:
    """Known by what they have, so that neither Pillow nor NumPy is imported."""
    return all(hasattr(value, name) for name in ("size", "mode", "tobytes")) or (
        all(hasattr(value, name) for name in ("shape", "dtype")) and value.ndim >= 2
    )
