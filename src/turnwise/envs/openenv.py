"""Environments behind an OpenEnv server, over its WebSocket: one connection is one session, with a game of its own."""

from __future__ import annotations

import json
from typing import Any

import gymnasium

from turnwise.envs.phrases import FreeText, positive, texts
from turnwise.loopback import spare_loopback
from turnwise.optional import optional


class OpenEnv(gymnasium.Env[dict[str, str], str]):
    """The environment at a server's address, such as `http://127.0.0.1:8000`.

    `action` names the field of the server's action that holds the text to play, `text` the field of its observation
    that holds the text to show. The seed of a level goes to the server, which must heed it.

    A server only says `done`, which is read as terminated, unless its metadata or observation says `truncated` too.
    A limit of turns that the server keeps to itself thus looks like an end of the task, and teaches a value of 0: set
    `max_turns` a turn lower than it, and the episode is truncated here instead, and its value bootstrapped.
    `success` and `progression` are passed on where metadata or observation hold them; otherwise use the recipe's
    `environment.reward: native`.
    """

    def __init__(self, url: str, action: str = "message", text: str = "message", max_turns: int | None = None):
        self._connect = optional("websockets.sync.client", "openenv").connect
        spare_loopback()
        scheme, _, address = url.partition("://")
        if scheme not in ("http", "https", "ws", "wss") or not address:
            raise ValueError(f"url is {url!r}, but must be an address such as http://127.0.0.1:8000.")
        self._url = f"{'wss' if scheme in ('https', 'wss') else 'ws'}://{address.rstrip('/')}/ws"
        self.action, self.text, self.max_turns = action, text, positive("max_turns", max_turns)
        self.observation_space = texts("text")
        self.action_space = FreeText()
        self._socket: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, str], dict[str, Any]]:
        super().reset(seed=seed)
        if self._socket is None:
            self._socket = self._connect(self._url)
        self._turns = 0
        answer = self._ask("reset", {"seed": int(self.np_random.integers(2**31))})
        return self._observe(answer), {}

    def step(self, action: str) -> tuple[dict[str, str], float, bool, bool, dict[str, Any]]:
        answer = self._ask("step", {self.action: action})
        self._turns += 1
        facts = {**answer["observation"], **(answer.get("metadata") or {})}
        done = bool(answer["done"])
        truncated = bool(facts.get("truncated")) if done else self._turns == self.max_turns
        info = {key: facts[key] for key in ("success", "progression") if facts.get(key) is not None}
        return self._observe(answer), float(answer["reward"] or 0), done and not truncated, truncated, info

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _ask(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        self._socket.send(json.dumps({"type": kind, "data": data}))
        answer = json.loads(self._socket.recv())
        if answer["type"] == "error":
            raise RuntimeError(f"the server at {self._url} says: {answer['data'].get('message')}")
        return answer["data"]

    def _observe(self, answer: dict[str, Any]) -> dict[str, str]:
        fields = answer["observation"]
        if not isinstance(fields.get(self.text), str):
            raise ValueError(f"text is {self.text!r}, but the server's observation holds {', '.join(sorted(fields))}")
        return {"text": fields[self.text]}
