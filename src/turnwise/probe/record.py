"""Probes as plain data, for a JSON file."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from turnwise.probe.play import Probe
from turnwise.probe.verdicts import verdicts


def record(probes: Sequence[Probe]) -> list[dict[str, Any]]:
    """A dict a probe: every figure of the page, and its verdicts."""
    return [
        {
            **asdict(probe),
            "config": probe.config.model_dump(mode="json"),
            "verdicts": [asdict(verdict) for verdict in verdicts(probe)],
        }
        for probe in probes
    ]
