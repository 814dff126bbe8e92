"""Samples for agents that play no environment, split so that training never sees a test."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from turnwise.components import Component
from turnwise.config import DataConfig
from turnwise.data.order import drawn
from turnwise.data.read import Place, Row, find_files, read_rows
from turnwise.data.samples import to_sample
from turnwise.seeds import derive
from turnwise.types import Sample

__all__ = ["Data", "drawn", "fingerprint", "load_data"]

Split = Literal["train", "test"]


@dataclass(frozen=True)
class Data:
    train: tuple[Sample, ...]
    test: tuple[Sample, ...]
    shared: int  # training samples that were left out, because a test sample has the same prompt


def load_data(config: DataConfig) -> Data:
    """Read, convert and split, and shuffle what is tested.

    Every mistake is a ValueError of one sentence that names the file and the row.
    """
    train, share = list(_samples(config, "train")), config.share_held_out
    if share is None:
        test = list(_samples(config, "test"))
    else:
        test = [sample for sample in train if _held_out(sample, share)]
        if len(test) in (0, len(train)):
            raise ValueError(
                f"data.held_out={share} of {len(train)} samples leaves {len(test)} to test on; "
                "name test rows in data.test, or change the share"
            )
        train = [sample for sample in train if not _held_out(sample, share)]
    tested = {_asked(sample) for sample in test}
    kept = tuple(sample for sample in train if _asked(sample) not in tested)
    for split, samples in (("train", kept), ("test", test)):
        if not samples:
            raise ValueError(f"data holds no {split} samples whose prompt is in no other split; check data.{split}")
    # An evaluation plays the first of them, and files may stand in the order of their sources, or of difficulty.
    test.sort(key=lambda sample: derive("test order", _asked(sample)))
    return Data(kept[: config.max_samples], tuple(test), len(train) - len(kept))


def fingerprint(samples: Sequence[Sample]) -> str:
    """Tells samples from others, wherever they stood."""
    told = repr([replace(sample, place="") for sample in samples])
    return hashlib.blake2b(told.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _samples(config: DataConfig, split: Split) -> Iterator[Sample]:
    convert = config.convert.make("data.convert") if config.convert else None
    for index, (place, row) in enumerate(_rows(config, split)):
        yield to_sample(place, _converted(convert, place, row, index, split), index, config.prompt_key)


def _rows(config: DataConfig, split: Split) -> Iterator[tuple[Place, Any]]:
    if config.generate:
        rows = _generated(config.generate, split)
        yield from ((f"{config.generate.use}, {split} row {number}", row) for number, row in enumerate(rows, 1))
        return
    for path in find_files(f"data.{split}", getattr(config, split)):
        yield from read_rows(path)


def _generated(component: Component, split: Split) -> Iterator[Any]:
    made = component.make("data.generate")
    try:
        yield from made.rows(split)
    except Exception as error:
        raise ValueError(f"data.generate: {component.use} cannot make {split} rows: {_told(error)}") from error


def _converted(convert: Callable[..., Row] | None, place: Place, row: Any, index: int, split: Split) -> Any:
    if convert is None:
        return row
    try:
        return convert(row, index, split)
    except Exception as error:
        raise ValueError(f"{place} cannot be converted: {_told(error)}") from error


def _told(error: Exception) -> str:
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return f"{kind}{' '.join(str(error).split())}"


def _asked(sample: Sample) -> str:
    """What a prompt says, as one text."""
    return json.dumps([[message["role"], message["content"]] for message in sample.prompt])


def _held_out(sample: Sample, share: float) -> bool:
    """By the prompt alone: the same row is held out on every machine, wherever it stands and whatever is added."""
    return derive("held out", _asked(sample)) < share * 2**62
