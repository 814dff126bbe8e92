"""Files that survive a crash while they are written."""

import os
from pathlib import Path


def write(file: Path, content: bytes) -> None:
    """Write a file that appears by one rename, when it is on disk."""
    draft = file.with_name(f"{file.name}.draft")
    draft.write_bytes(content)
    flush(draft)
    draft.rename(file)
    flush(file.parent)


def flush(path: Path) -> None:
    """Wait until a file, or what a folder lists, is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
