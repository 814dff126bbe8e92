"""vLLM without a server: ids and log-probs come through, it begins anew when it dies, and Ctrl-C does not reach it.

Its engine is a fake here; tests/engines/test_real_vllm.py runs the real one.
"""

import asyncio
import multiprocessing
import signal
import sys
import threading
import time
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from brains import STOP, expected, hashed
from safetensors.torch import load_file

from turnwise.engines.client import LLMServerClient
from turnwise.engines.make import make_engine
from turnwise.engines.servers import ServerFailure
from turnwise.engines.vllm_inside import VLLMInside
from turnwise.recipe import parse_config
from turnwise.types import Generation, Sampling

GREEDY = Sampling(10, temperature=0)
PROMPTS = [tuple(range(n, 3 * n)) for n in range(1, 7)]


class VLLMError(Exception):
    pass


class VLLMClientError(VLLMError):
    pass


class VLLMServerError(VLLMError):
    pass


class FakeAsyncLLM:
    """Samples what the brains say, a token at a time, and dies when it is told to."""

    made: list["FakeAsyncLLM"] = []  # noqa: RUF012
    broken = ""  # why none can be made

    def __init__(self, arguments: dict[str, Any]):
        if self.broken:
            raise RuntimeError(self.broken)
        self.made.append(self)
        self.arguments = arguments
        self.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self.errored = self.closed = False
        self.model_config = SimpleNamespace(max_model_len=arguments.get("max_model_len", 100_000))
        self.weight, self.salts, self.asked, self.called, self.left = 0.0, set[str](), [], list[str](), 0

    @classmethod
    def from_engine_args(cls, arguments: Any) -> "FakeAsyncLLM":
        return cls(vars(arguments))

    async def generate(self, prompt: dict[str, Any], asked: Any, request_id: str) -> AsyncGenerator[Any, None]:
        ids = list(prompt["prompt_token_ids"])
        if len(ids) > 100:
            raise VLLMClientError("the prompt has more than 100 tokens")
        self.salts.add(prompt["cache_salt"])
        self.asked.append(asked)
        try:
            for k in range(asked.max_tokens):
                await asyncio.sleep(0.002)
                if self.errored:
                    raise VLLMServerError("EngineCore died")
                token, logprob = hashed(ids, self.weight)
                ids.append(token)
                last = token in asked.stop_token_ids or k + 1 == asked.max_tokens
                reason = ("stop" if token in asked.stop_token_ids else "length") if last else None
                places = [{token: SimpleNamespace(logprob=logprob), 59: SimpleNamespace(logprob=0.0)}]
                choice = SimpleNamespace(token_ids=[token], logprobs=places, finish_reason=reason)
                yield SimpleNamespace(outputs=[choice])
                if last:
                    return
        except (asyncio.CancelledError, GeneratorExit):
            self.left += 1
            raise

    async def collective_rpc(self, method: str, kwargs: dict[str, Any] | None = None) -> None:
        self.called.append(method)
        if self.errored:
            raise VLLMServerError("EngineCore died")
        if kwargs and not Path(kwargs["weights_path"]).is_dir():
            raise Exception("Call to collective_rpc method failed: no weights")
        if method == "reload_weights":
            self.weight = float(load_file(Path(kwargs["weights_path"]) / "model.safetensors")["weight"])

    def shutdown(self, timeout: float | None = None) -> None:
        self.closed = True


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch):
    """The class of engines that a fake vLLM makes."""
    contents: dict[str, dict[str, Any]] = {
        "vllm": {},
        "vllm.sampling_params": {
            "SamplingParams": SimpleNamespace,
            "RequestOutputKind": SimpleNamespace(DELTA="delta"),
        },
        "vllm.inputs": {},
        "vllm.inputs.engine": {
            "tokens_input": lambda ids, cache_salt: {"prompt_token_ids": ids, "cache_salt": cache_salt}
        },
        "vllm.exceptions": {"VLLMClientError": VLLMClientError, "VLLMServerError": VLLMServerError},
        "vllm.engine": {},
        "vllm.engine.arg_utils": {"AsyncEngineArgs": SimpleNamespace},
        "vllm.v1": {},
        "vllm.v1.engine": {},
        "vllm.v1.engine.async_llm": {"AsyncLLM": FakeAsyncLLM},
    }
    for name, attributes in contents.items():
        module = ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("VLLM_WORKER_MULTIPROC_METHOD", "VLLM_LOGGING_LEVEL", "VLLM_NO_USAGE_STATS"):
        monkeypatch.setenv(name, "set")
    FakeAsyncLLM.made = []
    return FakeAsyncLLM


@pytest.fixture
def engine(fake, tiny, tmp_path):
    told = {"use": "vllm_inside", "options": {"max-model-len": 512}, "wait_s": 20}
    rollout = {"max_prompt_tokens": 500, "max_reply_tokens": 12}
    config = parse_config({"run": str(tmp_path), "engine": told, "rollout": rollout})
    made = make_engine(config, tiny[0], frozenset([STOP]), nullcontext())
    assert isinstance(made, LLMServerClient)
    yield made
    made.close()


def ask(engine: LLMServerClient, *prompts: tuple[int, ...], sampling: Sampling = GREEDY) -> list[Generation]:
    async def all_of_them() -> list[Generation]:
        return await asyncio.gather(*(engine.generate(prompt, sampling, str(prompt)) for prompt in prompts))

    return asyncio.run(all_of_them())


def test_ids_and_log_probs_come_through_batch_after_batch(fake, engine):
    engine.load({"weight": torch.tensor(2.0)}, 1)
    for _ in range(2):  # each in an event loop of its own
        for prompt, reply in zip(PROMPTS, ask(engine, *PROMPTS), strict=True):
            assert reply.token_ids == expected(prompt, 10, 2.0)
            assert reply.logprobs == tuple(-token / 100 - 0.01 for token in reply.token_ids)
            assert reply.finish_reason == ("stop" if reply.token_ids[-1] == STOP else "length")
            assert reply.policy_version == 1


def test_one_that_reads_less_than_the_recipe_allows_is_refused(fake):
    with pytest.raises(ValueError, match=r"vLLM reads 512 tokens at most .*allow together, 513"):
        VLLMInside("model", "float32", "cpu", frozenset([STOP]), {"max-model-len": 512}, 513)
    assert fake.made[-1].closed


def test_it_is_begun_as_the_trainer_s_model_is(fake, engine, tiny):
    (inside,) = fake.made
    told = {key: inside.arguments[key] for key in ("model", "dtype", "logprobs_mode", "max_model_len")}
    path = str(tiny[0].name_or_path)
    assert told == {"model": path, "dtype": "float32", "logprobs_mode": "processed_logprobs", "max_model_len": 512}
    assert not inside.arguments["enable_chunked_prefill"]
    assert inside.arguments["worker_extension_cls"] == "turnwise.engines.in_vllm.turnwise_worker.Heads"
    assert signal.SIGINT in inside.blocked  # its children inherit that
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_new_weights_are_read_and_old_keys_are_not(fake, engine):
    for version in (1, 2):
        engine.load({"weight": torch.tensor(float(version))}, version)
        assert ask(engine, PROMPTS[0])[0].token_ids == expected(PROMPTS[0], 10, version)
    (inside,) = fake.made
    assert inside.called == ["reload_weights", "turnwise_pack_heads"] * 2
    assert len(inside.salts) == 2


def test_one_that_dies_is_begun_anew_and_loses_no_token(fake, engine):
    engine.load({"weight": torch.tensor(3.0)}, 1)
    long = next(prompt for prompt in PROMPTS if len(expected(prompt, 10, 3.0)) == 10)

    async def die() -> Generation:
        asked = asyncio.create_task(engine.generate(long, GREEDY, "one"))
        while not engine.counters["the trainer's side"].tokens:
            await asyncio.sleep(0.001)
        fake.made[0].errored = True
        return await asked

    assert asyncio.run(die()).token_ids == expected(long, 10, 3.0)
    first, second = fake.made
    assert first.closed and second.weight == 3.0 and not second.errored
    assert engine.counters["the trainer's side"].failures == 1


def test_who_stops_reading_stops_the_sampling(fake, engine):
    long = next(prompt for prompt in PROMPTS if len(expected(prompt, 10)) == 10)

    async def leave() -> None:
        asked = asyncio.create_task(engine.generate(long, GREEDY, "one"))
        while not engine.counters["the trainer's side"].tokens:
            await asyncio.sleep(0.001)
        asked.cancel()
        await asyncio.wait({asked})
        while not fake.made[0].left:
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(leave(), 10))


def test_what_vllm_refuses_ends_the_run_with_its_words(engine):
    with pytest.raises(ValueError, match="vLLM refuses a request: the prompt has more than 100 tokens"):
        ask(engine, tuple(range(101)))
    with pytest.raises(ValueError, match=r"set rollout.top_p=1"):
        ask(engine, PROMPTS[0], sampling=Sampling(10, top_p=0.5))


def test_one_that_cannot_begin_says_why_and_leaves_no_thread(fake, monkeypatch):
    monkeypatch.setattr(fake, "broken", "no such model")
    before = threading.active_count()
    with pytest.raises(ValueError, match="vLLM did not start: RuntimeError: no such model"):
        VLLMInside("nowhere", "float32", "cpu", frozenset([STOP]), {})
    assert threading.active_count() == before


def test_weights_that_it_cannot_read_are_its_failure(engine, tmp_path):
    (inside,) = engine._servers.values()
    with pytest.raises(ServerFailure, match=r"vLLM failed .*no weights") as failure:
        inside.load(tmp_path / "nowhere", 1)
    assert not failure.value.gone


def test_log_probs_of_another_temperature_are_refused(fake):
    with pytest.raises(ValueError, match=r"engine\.options has logprobs_mode=raw_logprobs"):
        VLLMInside("model", "float32", "cpu", frozenset([STOP]), {"logprobs-mode": "raw_logprobs"})


def test_one_that_cannot_begin_anew_is_not_ready(fake, monkeypatch, tmp_path):
    inside = VLLMInside("model", "bfloat16", "cuda", frozenset([STOP]), {})
    assert inside.ready() and "worker_extension_cls" not in fake.made[0].arguments
    fake.made[0].errored = True
    with pytest.raises(ServerFailure, match="vLLM died") as failure:
        inside.load(tmp_path, 1)
    assert failure.value.gone
    monkeypatch.setattr(fake, "broken", "no memory")
    assert not inside.ready()
    inside.close()


def test_what_it_has_started_ends_when_nobody_else_can_end_it(fake, monkeypatch):
    began = []

    def begin(arguments: Any) -> FakeAsyncLLM:
        began.append(multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,)))
        began[0].start()
        return FakeAsyncLLM(vars(arguments))

    monkeypatch.setattr(fake, "from_engine_args", begin)
    inside = VLLMInside("model", "float32", "cpu", frozenset([STOP]), {})
    assert inside._reaper and inside._reaper.stdin
    inside._reaper.stdin.close()  # as when this process dies
    began[0].join(20)
    assert began[0].exitcode == -signal.SIGTERM
    inside._reaper.stdin = None
    inside.close()


def test_one_that_dies_over_a_question_is_not_waited_for(fake, monkeypatch, tmp_path):
    async def for_ever(self: FakeAsyncLLM, method: str, kwargs: Any = None) -> None:
        self.errored = True
        await asyncio.sleep(600)

    monkeypatch.setattr(fake, "collective_rpc", for_ever)
    inside = VLLMInside("model", "float32", "cpu", frozenset([STOP]), {})
    with pytest.raises(ServerFailure, match="vLLM failed: it died") as failure:
        inside.load(tmp_path, 1)
    assert failure.value.gone
    inside.close()


def test_an_answer_that_comes_as_a_look_ends_is_taken(fake, monkeypatch):
    class Late(Future[str]):
        def result(self, timeout: float | None = None) -> str:
            if not self.done():
                self.set_result("well")
                raise TimeoutError
            return super().result(timeout)

    inside = VLLMInside("model", "float32", "cpu", frozenset([STOP]), {})
    question = asyncio.sleep(0)
    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "run_coroutine_threadsafe", lambda *_: Late())
        assert inside._ask(question) == "well"
    question.close()
    inside.close()


def test_one_that_does_not_begin_in_time_is_one_sentence(fake, monkeypatch):
    monkeypatch.setattr("turnwise.engines.vllm_inside._LOAD_TIMEOUT_S", 0.1)
    monkeypatch.setattr("turnwise.engines.vllm_inside._POLL_S", 0.1)
    monkeypatch.setattr("turnwise.engines.vllm_inside._PARTING_S", 0.1)
    monkeypatch.setattr(fake, "from_engine_args", lambda _: time.sleep(1))
    with pytest.raises(ValueError, match=r"vLLM did not start: .* it has not answered for 0\.1 s"):
        VLLMInside("model", "float32", "cpu", frozenset([STOP]), {})


def test_without_vllm_a_sentence_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ValueError, match=r"engine\.use=vllm_inside needs vLLM in the environment that runs Turnwise"):
        VLLMInside("model", "float32", "cpu", frozenset([STOP]), {})
