"""The same as `collect`, by vLLM: the engine of those who collect whole episodes, here in the trainer's environment."""

import os
import subprocess

from benchmarks.collect import measure
from benchmarks.peers import EVERYBODY, ROOT, Contestant
from benchmarks.sample import VLLM

OPTIONS = {"max_model_len": 1024}
TURNWISE_IN_VLLM = Contestant(
    "collect_vllm",
    "",
    environment="vllm_turnwise",
    installs=(*VLLM.installs, f"install --editable {ROOT}"),
    variables={name: value for name, value in VLLM.variables.items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"},
)


def main() -> None:
    variables = {**os.environ, **EVERYBODY, **TURNWISE_IN_VLLM.variables}
    command = [TURNWISE_IN_VLLM.python(), "-m", f"benchmarks.{TURNWISE_IN_VLLM.module}"]
    subprocess.run(command, cwd=ROOT, env=variables, check=True)


if __name__ == "__main__":
    measure("collect_vllm", {"engine": {"use": "vllm_inside", "options": OPTIONS}})
