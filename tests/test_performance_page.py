"""docs/performance.md says what the records say."""

import re

from benchmarks.page import FIGURE, PAGE, refreshed


def test_figures_are_those_of_the_records():
    page = PAGE.read_text()
    assert len(FIGURE.findall(page)) >= 30
    assert refreshed(page) == page


def test_tables_hold_no_figure_of_their_own():
    """But in the first column, which says what was measured."""
    rows = [line for line in FIGURE.sub("", PAGE.read_text()).splitlines() if line.startswith("| ")]
    cells = [cell for row in rows for cell in row.strip("| ").split(" | ")[1:]]
    assert cells
    assert [cell for cell in cells if re.fullmatch(r"[\d.,%]+", cell.strip())] == []


def test_a_changed_record_changes_the_page():
    figure = "| 1<!--horizon.turns ,.0f--> |"
    assert refreshed(figure) == "| 2,000<!--horizon.turns ,.0f--> |"
