"""The real vLLM, where there is one: VLLM_PYTHON names an interpreter that has it. Takes minutes, mostly to start."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers import play_config

from turnwise.engines.client import LLMServerClient
from turnwise.engines.local import LocalEngine
from turnwise.engines.make import make_engine
from turnwise.models import arithmetic, open_model
from turnwise.protocols import Engine
from turnwise.render import Renderer
from turnwise.types import Generation, Sampling

PYTHON = os.environ.get("VLLM_PYTHON")
pytestmark = pytest.mark.skipif(not PYTHON, reason="VLLM_PYTHON names no interpreter with vLLM")
LENGTH = 32


class Bench:
    """The embedded model, and the same behind a server."""

    def __init__(self, folder: Path):
        options = {"max-model-len": 512, "enforce-eager": True}
        config = play_config(
            run=str(folder),
            model={"path": "tiny", "precision": "fp32", "device": "cpu"},
            engine={"use": "vllm", "launch": 1, "python": PYTHON, "options": options},
        )
        self.model, tokenizer = open_model(config.model)
        renderer, precision = Renderer(tokenizer), arithmetic("fp32", self.model.device)
        text = "You see a wall {} steps ahead, and a red ball {} steps left. Go to the red ball."
        asked = [text.format(n, n % 5) for n in range(24)]
        self.prompts = [renderer.prompt([{"role": "user", "content": one}]) for one in asked]
        self.local = LocalEngine(self.model, renderer.stop_ids, precision)
        served = make_engine(config, self.model, renderer.stop_ids, precision)
        assert isinstance(served, LLMServerClient)
        self.served = served

    def play(
        self, engine: Engine, temperature: float, meanwhile: Callable[[], None] = lambda: None
    ) -> list[Generation]:
        """A reply to each prompt; `meanwhile` is called when the server has sampled some tokens."""

        async def play() -> list[Generation]:
            before = self.tokens()
            tasks = [
                asyncio.create_task(engine.generate(prompt, Sampling(LENGTH, temperature, seed=number), str(number)))
                for number, prompt in enumerate(self.prompts)
            ]
            while engine is self.served and self.tokens() < before + 100:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(meanwhile)
            return await asyncio.gather(*tasks)

        return asyncio.run(play())

    def tokens(self) -> int:
        return sum(one.tokens for one in self.served.counters.values())

    @torch.no_grad()
    def gap(self, replies: list[Generation], temperature: float) -> float:
        """The largest difference between a log-prob and the trainer's."""
        gaps = []
        for prompt, reply in zip(self.prompts, replies, strict=True):
            logits = self.model(torch.tensor([[*prompt, *reply.token_ids]])).logits[0, len(prompt) - 1 : -1]
            scores = torch.log_softmax(logits.float() / (temperature or 1), -1)
            mine = scores.gather(1, torch.tensor(reply.token_ids)[:, None])[:, 0]
            gaps.append((mine - torch.tensor(reply.logprobs)).abs().max().item())
        return max(gaps)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory):
    made = Bench(tmp_path_factory.mktemp("vllm"))
    made.served.load(made.model.state_dict(), 1)
    yield made
    made.served.close()


def ids(replies: list[Generation]) -> list[tuple[int, ...]]:
    return [reply.token_ids for reply in replies]


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_its_log_probs_are_those_of_the_trainer(bench, temperature):
    assert bench.gap(bench.play(bench.served, temperature), temperature) < 1e-4


def test_the_same_seeds_give_the_same_replies(bench):
    first, second = (ids(bench.play(bench.served, 1.0)) for _ in range(2))
    assert first == second and len(set(first)) > 1


def test_new_weights_come_without_a_restart_and_in_the_middle(bench):
    old = ids(bench.play(bench.served, 0.0))
    assert old == ids(bench.play(bench.local, 0.0))
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in bench.model.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    bench.local.load({}, 2)
    mixed = bench.play(bench.served, 0.0, lambda: bench.served.load(bench.model.state_dict(), 2))
    assert any(set(reply.versions) == {1, 2} for reply in mixed)
    new = bench.play(bench.served, 0.0)
    assert ids(new) == ids(bench.play(bench.local, 0.0)) != old
    assert bench.gap(new, 0.0) < 1e-4 and {reply.policy_version for reply in new} == {2}


def test_a_server_that_is_killed_loses_no_token(bench):
    (url,) = bench.served.counters
    found = ["pgrep", "-f", f"^{PYTHON} .*api_server .*--port {url.rpartition(':')[2]}"]

    def kill() -> None:
        (pid,) = subprocess.run(found, capture_output=True, text=True, check=True).stdout.split()
        os.kill(int(pid), signal.SIGKILL)

    replies = bench.play(bench.served, 0.0, kill)
    assert ids(replies) == ids(bench.play(bench.local, 0.0))
    assert bench.served.counters[url].failures > 0
