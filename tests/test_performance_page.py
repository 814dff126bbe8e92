"""docs/performance.md says what the records say."""

import json
import re

from benchmarks.collect import CASES
from benchmarks.common import RESULTS
from benchmarks.page import FIGURE, PAGE, refreshed

# Of GPUs, and of collecting by vLLM, by processors that told no more than their kind; the page dates them.
OLD = {"collect_gpu", *(f"collect_vllm{case}" for case in CASES)}


def test_figures_are_those_of_the_records():
    page = PAGE.read_text()
    assert len(FIGURE.findall(page)) >= 30
    assert refreshed(page) == page


def test_a_section_compares_what_one_machine_measured():
    sections = [FIGURE.findall(section) for section in PAGE.read_text().split("\n## ")]
    files = [{file for file, _, _ in figures} for figures in sections if figures]
    for section in files:
        machines = {
            json.loads((RESULTS / f"{file}.json").read_text())["machine"] for file in section if file not in OLD
        }
        assert len(machines) <= 1, section


def test_tables_hold_no_figure_of_their_own():
    """But in the first column, which says what was measured."""
    rows = [line for line in FIGURE.sub("", PAGE.read_text()).splitlines() if line.startswith("| ")]
    cells = [cell for row in rows for cell in row.strip("| ").split(" | ")[1:]]
    assert cells
    assert [cell for cell in cells if re.fullmatch(r"[\d.,%]+", cell.strip())] == []


def test_a_changed_record_changes_the_page():
    figure = "| 1<!--horizon.turns ,.0f--> |"
    assert refreshed(figure) == "| 2,000<!--horizon.turns ,.0f--> |"
