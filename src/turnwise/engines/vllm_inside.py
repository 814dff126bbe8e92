"""vLLM without a server: its engine as a child of the trainer, spoken to without HTTP (written for 0.32.0).

For a trainer that runs in an environment which has vLLM. What is sampled is what a server would sample.
"""

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing import resource_tracker
from pathlib import Path
from secrets import token_hex
from typing import Any

from turnwise.engines.servers import Piece, ServerFailure, make_piece
from turnwise.engines.vllm import LOGPROBS, finish_of, parameters, refuse_too_short
from turnwise.types import Sampling

_EXTENSION = "turnwise.engines.in_vllm.turnwise_worker.Heads"
_LOAD_TIMEOUT_S = 900.0
_PARTING_S = 5.0
_POLL_S = 1.0


class VLLMInside:
    """A `Server` that is none. Its engine lives in an event loop of its own, and is begun again when it dies."""

    name = "the trainer's side"

    def __init__(
        self, model: str, dtype: str, device: str, stop_ids: frozenset[int], options: Mapping[str, Any], tokens: int = 0
    ):
        """`options` are further engine arguments, `tokens` how many the longest prompt and its reply have together.

        Returns once the engine is ready, which may take minutes.
        """
        self._on_a_processor = device == "cpu"
        self._stop_ids = stop_ids
        self._arguments = {
            "model": model,
            "dtype": dtype,
            "logprobs_mode": LOGPROBS,
            "generation_config": "vllm",
            # On a processor, 0.32.0 dies of a seed where a prompt is read in parts.
            **({"enable_chunked_prefill": False, "worker_extension_cls": _EXTENSION} if self._on_a_processor else {}),
            **{name.replace("-", "_"): value for name, value in options.items()},
        }
        if (mode := self._arguments["logprobs_mode"]) != LOGPROBS:
            raise ValueError(
                f"engine.options has logprobs_mode={mode}, which scores tokens at another temperature than they are "
                "sampled at; leave it out"
            )
        self._salt = token_hex(8)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()
        self._engine: Any = None
        self._reaper: subprocess.Popen[bytes] | None = None
        try:
            self._start()
            refuse_too_short("vLLM", self._engine.model_config.max_model_len, tokens)
        except BaseException as error:
            self.close()
            if isinstance(error, ServerFailure):
                raise ValueError(f"vLLM did not start: {error}") from error
            raise

    async def stream(self, prompt_ids: Sequence[int], sampling: Sampling, version: int) -> AsyncGenerator[Piece, None]:
        pieces: asyncio.Queue[Piece | None] = asyncio.Queue()
        home = asyncio.get_running_loop()

        def hand(piece: Piece | None) -> None:
            with suppress(RuntimeError):  # nobody waits there any more
                home.call_soon_threadsafe(pieces.put_nowait, piece)

        sampled = asyncio.run_coroutine_threadsafe(self._sample(prompt_ids, sampling, hand), self._loop)
        sampled.add_done_callback(lambda _: hand(None))
        try:
            while (piece := await pieces.get()) is not None:
                yield piece
            sampled.result()  # raises what it was stopped by
        finally:
            sampled.cancel()

    def ready(self) -> bool:
        """Begins the engine anew if it has died, which takes as long as the first time."""
        if self._engine is not None and not self._engine.errored:
            return True
        try:
            self._stop(0)
            self._start()
        except (ValueError, ServerFailure):
            return False
        return True

    def load(self, weights: Path, version: int) -> None:
        with self._failing():
            self._ask(self._engine.collective_rpc("reload_weights", kwargs={"weights_path": str(weights)}))
            if self._on_a_processor:
                self._ask(self._engine.collective_rpc("turnwise_pack_heads"))
        self._salt = token_hex(8)  # keys and values are kept, but never read under other weights

    def close(self) -> None:
        self._stop(_PARTING_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PARTING_S)  # one that hangs is left behind

    def _live(self) -> None:
        # Children inherit what is blocked: Ctrl-C stops the trainer after its step, and until then it needs the engine.
        resource_tracker.ensure_running()  # which unblocks it when it starts
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()

    def _start(self) -> None:
        before = set(multiprocessing.active_children())
        self._engine = self._ask(self._begin())
        pids = [str(child.pid) for child in set(multiprocessing.active_children()) - before]
        # A trainer that is killed can end nobody any more, and the engine would not notice.
        command = [sys.executable, "-m", "turnwise.engines.reaper", *pids]
        self._reaper = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def _stop(self, patience_s: float) -> None:
        engine, self._engine = self._engine, None  # its destructor wants an interpreter that is still whole
        if engine is not None:
            self._ask(self._end(engine, patience_s))
        if self._reaper is not None:
            self._reaper.kill()  # what it was to end is gone, and its number may be another's soon
            self._reaper.communicate()

    def _ask(self, question: Coroutine[Any, Any, Any]) -> Any:
        """What a coroutine of the engine's loop answers; a ServerFailure where it dies over it, or takes for ever."""
        asked: Future[Any] = asyncio.run_coroutine_threadsafe(question, self._loop)
        deadline = time.monotonic() + _LOAD_TIMEOUT_S
        while True:
            try:
                return asked.result(_POLL_S)
            except TimeoutError:
                if asked.done():  # just now, or its own time was up
                    return asked.result()
            dead = self._engine is not None and self._engine.errored
            if dead or time.monotonic() > deadline:
                asked.cancel()
                why = "it died" if dead else f"it has not answered for {_LOAD_TIMEOUT_S:g} s"
                raise ServerFailure(f"vLLM failed: {why}", gone=True)

    async def _begin(self) -> Any:
        os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")  # a fork would copy the trainer's threads' locks
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        made, arguments = _vllm("v1.engine.async_llm").AsyncLLM, _vllm("engine.arg_utils").AsyncEngineArgs
        try:
            return made.from_engine_args(arguments(**self._arguments, disable_log_stats=True))
        except Exception as error:
            raise ValueError(f"vLLM did not start: {type(error).__name__}: {error!s:.600}") from error

    async def _end(self, engine: Any, patience_s: float) -> None:
        """In its own loop, where nothing of it runs meanwhile that would miss what is gone."""
        engine.shutdown(patience_s)

    async def _sample(self, prompt_ids: Sequence[int], sampling: Sampling, hand: Callable[[Piece], None]) -> None:
        params = _vllm("sampling_params")
        delta = params.RequestOutputKind.DELTA
        asked = params.SamplingParams(**parameters(sampling, self._stop_ids), output_kind=delta)
        prompt = _vllm("inputs.engine").tokens_input(list(prompt_ids), cache_salt=self._salt)
        with self._failing():
            async for output in self._engine.generate(prompt, asked, token_hex(8)):
                hand(self._piece(output.outputs[0]))

    def _piece(self, choice: Any) -> Piece:
        scored = [places[token].logprob for token, places in zip(choice.token_ids, choice.logprobs or (), strict=True)]
        return make_piece(
            self.name, choice.token_ids, scored, finish_of(self.name, choice.finish_reason), self._stop_ids
        )

    @contextmanager
    def _failing(self) -> Iterator[None]:
        errors = _vllm("exceptions")
        try:
            yield
        except errors.VLLMClientError as error:
            raise ValueError(f"vLLM refuses a request: {error}") from error
        except (ValueError, ServerFailure):
            raise
        except Exception as error:  # what went wrong in the engine's process arrives as a bare one
            gone = self._engine.errored
            raise ServerFailure(f"vLLM {'died' if gone else 'failed'} ({error!r:.300})", gone) from error


def _vllm(part: str) -> Any:
    try:
        return import_module(f"vllm.{part}")
    except ImportError as error:
        raise ValueError(
            f"engine.use=vllm_inside needs vLLM in the environment that runs Turnwise ({error}); install it there, "
            "or use engine.use=vllm with engine.launch=1 and engine.python"
        ) from error
