"""A part of vLLM's worker, put there by `--worker-extension-cls turnwise_worker.Heads`.

It runs in the environment of vLLM, so it imports nothing of ours.
"""

from typing import Any


class Heads:
    """On a processor, vLLM multiplies by packed copies of weights, and 0.32.0 does not renew that of a tied head."""

    model_runner: Any  # the worker's own

    def turnwise_pack_heads(self) -> None:
        """Pack the head anew, after weights were reloaded."""
        for layer in self.model_runner.get_model().modules():
            if type(layer).__name__ == "ParallelLMHead":
                layer.quant_method.process_weights_after_loading(layer)
