"""Text that a terminal shows as it is meant."""

import sys

from rich.console import Console
from rich.progress import Progress
from rich.text import Text

NONE = "\N{EN DASH}"  # where a figure is missing


def printable(text: object) -> str:
    """Spells out what would move the cursor or change its colour."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in str(text))


def clip(text: str, width: int) -> str:
    """At most `width` columns, the last an ellipsis where something is missing."""
    line = Text(text)
    line.truncate(width, overflow="ellipsis")
    return line.plain


def clock(seconds: float) -> str:
    """3:10, or 1:03:10."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def progress_bar() -> Progress:
    """Beside the output, which may go elsewhere; it shows in terminals alone, and is gone at the end."""
    console = Console(stderr=True, quiet=not sys.stderr.isatty())
    return Progress(*Progress.get_default_columns(), console=console, transient=True)
