"""The code of docs/tools.md runs, and prints what the page says."""

import re
from pathlib import Path
from typing import Any

import yaml

PAGE = (Path(__file__).parents[2] / "docs" / "tools.md").read_text()


def test_the_page_does_what_it_says(capsys: Any):
    names: dict[str, Any] = {"__name__": "page"}
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(code, "docs/tools.md", "exec"), names)
    (printed,) = re.findall(r"```\n(ok .*?)```", PAGE, re.DOTALL)
    assert capsys.readouterr().out == printed


def test_the_pages_tool_file_has_the_keys_that_are_read():
    (tree,) = (yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
    from turnwise.tools.load import _ENTRY
    from turnwise.tools.mcp import Entry

    assert set(tree) == {"tools", "mcp_servers"}
    assert all(set(entry) <= set(_ENTRY) for entry in tree["tools"])
    assert all(set(entry) <= set(Entry.model_fields) for entry in tree["mcp_servers"])
