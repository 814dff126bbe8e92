"""python -m benchmarks.page: write the recorded figures into docs/performance.md.

A figure stands there as `1,234<!--update.tokens_per_s_2M_even ,.0f-->`: the file in results/, the path of the value
within it, and Python's format. The comment is not seen where the page is rendered.
"""

import json
import re

from benchmarks.common import RESULTS

PAGE = RESULTS.parent.parent / "docs" / "performance.md"
FIGURE = re.compile(r"[^\s|(]+<!--(?P<file>\w+)\.(?P<path>\S+) (?P<format>\S+)-->")


def refreshed(text: str) -> str:
    """The page with each figure as its file in results/ has it now."""
    return FIGURE.sub(_figure, text)


def _figure(match: re.Match[str]) -> str:
    value = json.loads((RESULTS / f"{match['file']}.json").read_text())
    for key in match["path"].split("."):
        value = value[int(key) if isinstance(value, list) else key]
    return match[0].replace(match[0].partition("<!--")[0], format(value, match["format"]), 1)


if __name__ == "__main__":
    PAGE.write_text(refreshed(PAGE.read_text()))
    print(f"wrote {PAGE.relative_to(RESULTS.parent.parent)}")
