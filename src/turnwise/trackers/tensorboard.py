"""TensorBoard (pip install -e '.[tensorboard]')."""

from collections.abc import Mapping
from pathlib import Path


class TensorBoard:
    def __init__(self, folder: Path, done: int):
        """Figures of steps after `done`, which a run that was killed has told already, are forgotten."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError("log.trackers has tensorboard; install it with pip install -e '.[tensorboard]'") from error
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=done + 1)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()
