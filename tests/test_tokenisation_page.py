"""The code of docs/tokenisation.md runs, and prints what the page says."""

import re
from pathlib import Path
from typing import Any

PAGE = (Path(__file__).parents[1] / "docs" / "tokenisation.md").read_text()


def test_the_page_does_what_it_says(capsys: Any):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(code, "docs/tokenisation.md", "exec"), {"__name__": "page"})
    (printed,) = re.findall(r"```\n(True\n.*?)```", PAGE, re.DOTALL)
    assert capsys.readouterr().out == printed
