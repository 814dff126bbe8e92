"""Files that survive a crash while they are written."""

import errno
import os
from pathlib import Path

_CANNOT = (errno.EINVAL, errno.ENOTSUP, errno.EIO)


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
    except OSError as error:
        if error.errno not in _CANNOT or not path.is_dir():  # some file systems, of networks above all, flush no folder
            raise
    finally:
        os.close(descriptor)
