"""Stands in for `python -m vllm.entrypoints.openai.api_server`: notes its arguments, and serves the fake."""

import os
import sys
import time
from importlib import import_module
from pathlib import Path

from fake_server import Fake


def given(flag: str) -> str:
    return sys.argv[sys.argv.index(flag) + 1]


if __name__ == "__main__":
    with Path(sys.argv[1]).open("a") as notes:
        print(os.getpid(), *sys.argv[2:], file=notes, flush=True)
    module, _, extension = given("--worker-extension-cls").rpartition(".")
    assert callable(getattr(import_module(module), extension).turnwise_pack_heads)
    Fake("vllm", port=int(given("--port")))
    time.sleep(3600)
