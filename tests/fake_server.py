"""A server on the loopback interface that speaks vLLM's or SGLang's wire format, and fails when it is told to."""

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from brains import STOP, Brain, hashed
from safetensors.numpy import load_file

Wire = Literal["vllm", "sglang"]
Fault = Literal["", "die", "hang", "500", "400", "error", "abort", "short", "nan", "end"]


class Fake:
    """`fault(request, place)` says what befalls the n-th request before its token at a place.

    "short" and "nan" spoil the log-probs, "end" closes the stream in the middle, "die" resets all connections and stops
    listening until `revive`, which has the weights of the start again.
    """

    def __init__(
        self,
        wire: Wire,
        brain: Brain = hashed,
        fault: Callable[[int, int], Fault] = lambda request, place: "",
        incremental: bool = True,
        logprobs_mode: str = "processed_logprobs",
        device: str = "cpu",
        extension: str = "turnwise_worker.Heads",
        longest: int = 100_000,
        port: int = 0,
    ):
        self.wire, self.brain, self.fault, self.incremental = wire, brain, fault, incremental
        self.config = {
            "model_config": {"logprobs_mode": logprobs_mode, "max_model_len": longest},
            "device_config": {"device": device},
            "parallel_config": {"worker_extension_cls": extension},
        }
        self.asked: list[dict[str, Any]] = []  # bodies of requests to generate
        self.broken = 0  # streams whose reader went away
        self.released = threading.Event()  # those that hang
        self.port = port
        self.revive()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def revive(self) -> None:
        self.weight, self.version = 0.0, "default"
        self.alive = True
        self._http = ThreadingHTTPServer(("127.0.0.1", self.port), _handler(self))
        self._http.daemon_threads = True
        self.port = self._http.server_port
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def die(self) -> None:
        """What is under way breaks off at its next token; nothing listens any more."""
        if self.alive:
            self.alive = False
            self._http.shutdown()
            self._http.server_close()

    def close(self) -> None:
        self.released.set()
        self.die()

    def tell(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Answer to a request that is not to generate."""
        if self.wire == "sglang" and path == "/update_weights_from_disk":
            assert body["abort_all_requests"] and body["flush_cache"]
            self.weight = self._read(body["model_path"])
            self.version = body["weight_version"]
            return 200, {"success": True, "message": ""}
        if self.wire == "vllm" and path == "/collective_rpc":
            if body["method"] == "turnwise_pack_heads":
                self.weight = self.read
            elif body["method"] == "reload_weights":
                self.read = self._read(body["kwargs"]["weights_path"])
                if self.config["device_config"]["device"] != "cpu":  # there the packed head stays behind
                    self.weight = self.read
            return 200, {"results": [None]}
        if self.wire == "vllm" and path == "/update_weight_version":
            self.version = body["new_version"]
            return 200, {"success": True}
        if path.startswith("/server_info"):
            return 200, {"vllm_config": self.config}
        return (200 if path == {"vllm": "/health", "sglang": "/health_generate"}[self.wire] else 404), {}

    def _read(self, folder: str) -> float:
        return float(load_file(f"{folder}/model.safetensors")["weight"])

    def sample(self, number: int, body: dict[str, Any]) -> Iterator[dict[str, Any] | Fault]:
        """The events of a reply."""
        parameters = body["sampling_params"]
        prompt = body["token_ids" if self.wire == "vllm" else "input_ids"]
        most = parameters["max_tokens" if self.wire == "vllm" else "max_new_tokens"]
        assert STOP in parameters["stop_token_ids"]
        tokens: list[int] = []
        logprobs: list[Any] = []
        while True:
            fault = self.fault(number, len(tokens)) if self.alive else "die"
            if fault in ("die", "hang", "end", "error", "abort"):
                yield fault
            token, logprob = self.brain([*prompt, *tokens], self.weight)
            tokens.append(token)
            logprobs += {"short": [], "nan": [None]}.get(fault, [logprob])
            finish = "stop" if token == STOP else "length" if len(tokens) == most else None
            yield self._event(tokens, logprobs, finish)
            if finish:
                return

    def _event(self, tokens: Sequence[int], logprobs: Sequence[Any], finish: str | None) -> dict[str, Any]:
        if self.wire == "vllm":
            content = [{"token_id": tokens[-1], "logprob": logprobs[-1]}] if len(logprobs) == len(tokens) else []
            spans = [{"version": self.version, "start": 0, "end": len(tokens)}] if finish else None
            choice = {"index": 0, "token_ids": [tokens[-1]], "logprobs": {"content": content}}
            return {"choices": [{**choice, "finish_reason": finish, "weight_versions": spans}]}
        first = len(tokens) - 1 if self.incremental else 0
        scored = [[logprob, token, None] for token, logprob in zip(tokens, logprobs, strict=False)]
        facts = {"completion_tokens": len(tokens), "weight_version": self.version}
        facts |= {"output_token_logprobs": scored[first:], "finish_reason": finish and {"type": finish}}
        return {"output_ids": list(tokens[first:]), "meta_info": facts}


def _handler(fake: Fake) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(*fake.tell(self.path, {}))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path != {"vllm": "/inference/v1/generate", "sglang": "/generate"}[fake.wire]:
                return self._answer(*fake.tell(self.path, body))
            assert body["stream"]
            fake.asked.append(body)
            number = len(fake.asked) - 1
            refusal = fake.fault(number, 0)
            if refusal in ("400", "500"):
                return self._answer(int(refusal), {"error": {"message": f"refused with {refusal}"}})
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream; charset=utf-8")
            self.end_headers()
            try:
                for event in fake.sample(number, body):
                    if isinstance(event, str):
                        return self._break_off(event)
                    self._send(event)
                self.wfile.write(b"data: [DONE]\n\n")
            except OSError:
                fake.broken += 1
            return None

        def _send(self, event: dict[str, Any]) -> None:
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
            self.wfile.flush()

        def _break_off(self, fault: Fault) -> None:
            if fault == "error":
                self._send({"error": {"message": "no memory", "code": 500}})
            elif fault == "abort":
                aborted = fake._event([0], [-1.0], "abort")
                self._send(aborted)
            elif fault == "hang":
                fake.released.wait(60)
            elif fault == "die":
                fake.die()
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # as a kill
                self.connection.close()

        def _answer(self, status: int, body: Any) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
