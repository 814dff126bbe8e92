"""Stands in for `python -m vllm.entrypoints.openai.api_server`: notes its arguments, and serves the fake."""

import os
import sys
import time
from pathlib import Path

from fake_server import Fake

if __name__ == "__main__":
    with Path(sys.argv[1]).open("a") as notes:
        print(os.getpid(), *sys.argv[2:], file=notes, flush=True)
    Fake("vllm", port=int(sys.argv[sys.argv.index("--port") + 1]))
    time.sleep(3600)
