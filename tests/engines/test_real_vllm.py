"""The real vLLM, as a server and without one. Takes minutes, mostly to start.

VLLM_PYTHON names an interpreter that has it, for the server. Without one it is tried where this interpreter has it.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
LENGTH = 32
OPTIONS = {"max-model-len": 512, "enforce-eager": True}


class Bench:
    """The embedded model, and the same on vLLM."""

    def __init__(self, folder: Path, engine: dict[str, Any]):
        config = play_config(
            run=str(folder),
            model={"path": "tiny", "precision": "fp32", "device": "cpu"},
            engine={**engine, "options": OPTIONS},
            rollout={"max_prompt_tokens": 480, "max_reply_tokens": LENGTH},
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


@pytest.fixture(scope="module", params=["vllm", "vllm_inside"])
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    if request.param == "vllm_inside":
        pytest.importorskip("vllm", reason="this interpreter has no vLLM")
        made = Bench(tmp_path_factory.mktemp("inside"), {"use": "vllm_inside"})
    else:
        if not PYTHON:
            pytest.skip("VLLM_PYTHON names no interpreter with vLLM")
        made = Bench(tmp_path_factory.mktemp("vllm"), {"use": "vllm", "launch": 1, "python": PYTHON})
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


def found(*pattern: str) -> list[int]:
    """The processes that pgrep finds."""
    told = subprocess.run(["pgrep", *pattern], capture_output=True, text=True, check=True).stdout
    return [int(pid) for pid in told.split()]


def test_ctrl_c_at_the_trainer_does_not_reach_what_it_began(bench):
    (name,) = bench.served.counters
    if "://" in name:
        pytest.skip("a server is begun in a session of its own")
    for pid in found("-f", "VLLM::"):
        os.kill(pid, signal.SIGINT)
    assert ids(bench.play(bench.served, 0.0)) == ids(bench.play(bench.local, 0.0))
    assert bench.served.counters[name].failures == 0


def test_one_that_is_killed_loses_no_token(bench):
    (url,) = bench.served.counters
    inside = ["-P", str(os.getpid()), "-f", "VLLM::EngineCore"]
    which = ["-f", f"^{PYTHON} .*api_server .*--port {url.rpartition(':')[2]}"] if "://" in url else inside

    def kill() -> None:
        (pid,) = found(*which)
        os.kill(pid, signal.SIGKILL)

    replies = bench.play(bench.served, 0.0, kill)
    assert ids(replies) == ids(bench.play(bench.local, 0.0))
    assert bench.served.counters[url].failures > 0
