"""What pages of the docs hold to be run: blocks of code, some of which are files and begin with their names."""

import re
from pathlib import Path


def blocks(page: str) -> list[tuple[str, str]]:
    """The language and the text of each."""
    text = (Path(__file__).parents[1] / "docs" / page).read_text()
    return re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL)


def write_files(blocks: list[tuple[str, str]], folder: Path) -> None:
    for _, text in blocks:
        if named := re.match(r"# ([\w.]+)\n", text):
            (folder / named[1]).write_text(text)
