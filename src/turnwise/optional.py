"""Packages that only some runs need."""

import importlib
from typing import Any


def optional(module: str, extra: str) -> Any:
    """The module. Where it cannot be imported, one sentence says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ValueError(f"{module} cannot be imported ({error}); pip install -e '.[{extra}]'") from error
