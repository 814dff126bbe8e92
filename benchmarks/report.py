"""How a competition is asked for, and where its figures go."""

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from benchmarks.common import RESULTS, machine
from benchmarks.peers import CACHE, Contestant


def parse(
    description: str | None, arguments: Sequence[str], contestants: Mapping[str, Contestant]
) -> tuple[bool, dict[str, Contestant]]:
    """Whether only to try it on a small size, and who takes part."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--small", action="store_true", help="a quick try; its figures mean nothing and are not kept")
    parser.add_argument("contestants", nargs="*", help=f"of {', '.join(contestants)}; none: all of them")
    options = parser.parse_args(arguments)
    unknown = set(options.contestants) - set(contestants)
    if unknown:
        parser.error(f"unknown contestants: {', '.join(sorted(unknown))}")
    wanted = options.contestants or list(contestants)
    return options.small, {name: one for name, one in contestants.items() if name in wanted}


def keep(name: str, figures: Mapping[str, Any], tried: bool) -> None:
    """Write the figures for the record; those of a try, small or of some contestants, go elsewhere."""
    folder = CACHE / "tried" if tried else RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({**figures, **machine()}, indent=1) + "\n")
    print(f"wrote {path if tried else Path(*path.parts[-3:])}")


def speedup(seconds: Mapping[str, Sequence[float]], name: str, other: str = "turnwise") -> float | None:
    """How many times as fast as `name` another is: median over the rounds, in each of which they ran in turn."""
    if other not in seconds or name == other:
        return None
    return statistics.median(theirs / its for its, theirs in zip(seconds[other], seconds[name], strict=True))


def show(title: str, work: Mapping[str, Any], figures: Mapping[str, Mapping[str, Any]]) -> None:
    """A row a figure, a column a contestant; above, what they did, and below, in what their work differs."""
    table = Table(Column(no_wrap=True), *figures, title=title)
    for key in next(iter(figures.values())):
        if key not in ("unequal", "installs"):
            table.add_row(key, *(_text(row[key]) for row in figures.values()))
    console = Console(width=140)
    for key, value in work.items():
        console.print(f"{key} = {_text(value)}", highlight=False)
    console.print(table)
    for name, row in figures.items():
        console.print(f"{name}: {row['unequal']}", highlight=False)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, tuple):
        return " to ".join(map(_text, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
