"""What `turnwise probe` does: play every plan, then tell the terminal, the page and the file of figures."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from turnwise.players import open_player
from turnwise.probe.page import page
from turnwise.probe.play import Plan, Probe, probe
from turnwise.probe.table import summary
from turnwise.probe.verdicts import verdicts
from turnwise.terminal import progress_bar


def run_probes(plans: Sequence[Plan], trained: Path | None, html: Path, figures: Path | None) -> None:
    """`trained`: the checkpoint that plays. Plans of the same model and sizes share it."""
    console, probes, players = Console(), [], []
    for plan in plans:  # all of them first, since one may be refused
        needs = plan.config.model, plan.config.rollout
        same = next((player for others, player in players if others == needs), None)
        players.append((needs, same or open_player(plan.config, trained)))
    with progress_bar() as progress:
        for plan, (_, (engine, renderer)) in zip(plans, players, strict=True):
            bar = progress.add_task(escape(plan.recipe), total=plan.episodes)
            probes.append(probe(plan, engine, renderer, lambda bar=bar: progress.advance(bar)))
    html.write_text(page(probes), encoding="utf-8")
    if figures is not None:
        figures.write_text(json.dumps([record(one) for one in probes], indent=1) + "\n", encoding="utf-8")
    for one in probes:  # at last: who reads it may have gone
        console.print(summary(one))
    console.print(f"Transcripts and charts: {html}", markup=False)


def record(probe: Probe) -> dict[str, Any]:
    """Every figure of the page, and the verdicts, as plain data."""
    judged = [asdict(verdict) for verdict in verdicts(probe)]
    return {**asdict(probe), "config": probe.config.model_dump(mode="json"), "verdicts": judged}
