"""Write the committed figures into docs/performance.md.

A table stands between `<!-- figures: RECORD KEY ... -->` and `<!-- end -->`. Of a record with contestants it has a row
for each of them and a column a key, of any other a row a key; `*` in a key
stands for anything.
"""

import fnmatch
import json
import re
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
BLOCK = re.compile(r"(<!-- figures: (\S+) ([^>]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> None:
    PAGE.write_text(filled(PAGE.read_text()))
    print(f"wrote {Path(*PAGE.parts[-2:])}")


def filled(page: str) -> str:
    """The page with every table as the records have it."""
    return BLOCK.sub(lambda found: f"{found[1]}{table(found[2], found[3].split())}{found[4]}", page)


def table(name: str, keys: list[str]) -> str:
    figures = json.loads((RESULTS / f"{name}.json").read_text())
    if "contestants" in figures:
        rows = figures["contestants"]
        lines = [["", *(key.replace("_", " ") for key in keys)]]
        lines += [[name, *(text(row.get(key)) for key in keys)] for name, row in rows.items()]
    else:
        lines = [[name, "figure"]]
        lines += [[key.replace("_", " "), text(figures[key])] for wanted in keys for key in matching(figures, wanted)]
    head, *body = ("| " + " | ".join(line) + " |\n" for line in lines)
    return head + "|" + " --- |" * len(lines[0]) + "\n" + "".join(body)


def matching(figures: dict[str, Any], wanted: str) -> list[str]:
    found = fnmatch.filter(figures, wanted)
    if not found:
        raise ValueError(f"no figure {wanted!r}; there are {', '.join(figures)}")
    return found


def text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return " to ".join(map(text, value))
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    main()
