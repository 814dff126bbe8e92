"""Lets a program of anybody's play, which knows nothing of us but the address of an OpenAI-compatible server."""

import json
from dataclasses import asdict
from typing import Any

from turnwise.agents.calls import Calls, asked_of, check_limits, load_program
from turnwise.agents.chat import sample_of
from turnwise.agents.judge import Judge
from turnwise.agents.programs import Command
from turnwise.calling import invoke
from turnwise.loopback import spare_loopback
from turnwise.optional import optional
from turnwise.protocols import Session, Setting
from turnwise.toolcalls import find_format
from turnwise.types import Ending

_GIVEN = ("base_url", "api_key", "model", "session", "sample")


class OpenAIAgent:
    """Each chat call of the program becomes a turn; tools and whatever else it does are its own affair."""

    def __init__(
        self,
        setting: Setting,
        command: str = "",
        function: str = "",
        format: str = "hermes",
        max_turns: int = 16,
        timeout_s: float = 120.0,
    ):
        """The program is a `command` line or a `function`, by dotted path, sync or async.

        A command finds the address, a key and the model in the variables OPENAI_BASE_URL, OPENAI_API_KEY and
        OPENAI_MODEL, its episode's address in TURNWISE_SESSION, and the sample as JSON on its standard input. A
        function asks by the names of its parameters for base_url, api_key, model, session and sample; a number that it
        returns is a reward.

        Calls of tools are read in the given `format`. The call after `max_turns` turns ends the episode, as does
        one whose prompt is too long. A program that is silent for `timeout_s` seconds, while it does not wait for a
        reply, loses its episode, as does one that fails.
        """
        if bool(command) == bool(function):
            raise ValueError("the agent needs either agent.command or agent.function; give one of them")
        check_limits(timeout_s, max_turns=max_turns)
        optional("uvicorn", "endpoint")
        optional("starlette", "endpoint")
        from turnwise.agents.endpoint import Endpoint

        spare_loopback()
        self._command = Command(command) if command else None
        self._function = load_program("agent.function", function, _GIVEN) if function else None
        self._setting = setting
        self._format = find_format(format)
        self._max_turns = max_turns
        self._timeout_s = timeout_s
        self._judge = Judge(setting)
        model = setting.config.model.path
        self._endpoint = setting.shared.once("endpoint", lambda: Endpoint(model))

    async def run(self, session: Session) -> Ending:
        sample = sample_of(session)
        calls = Calls(session, self._setting, self._max_turns, self._format)
        with self._endpoint.open(calls) as id:
            address = f"{self._endpoint.address}/t/{id}"
            task = {
                "base_url": f"{address}/v1",
                "api_key": id,
                "model": self._endpoint.model,
                "session": address,
                "sample": json.loads(json.dumps(asdict(sample))),  # a function gets what a command gets
            }
            final_prompt = await calls.play(self._program(task), self._timeout_s)
        return await self._judge(session, sample, calls, final_prompt)

    async def _program(self, task: dict[str, Any]) -> Any:
        if self._function is not None:
            return await invoke(self._function, **asked_of(self._function, task))
        assert self._command is not None
        variables = {
            "OPENAI_BASE_URL": task["base_url"],
            "OPENAI_API_KEY": task["api_key"],
            "OPENAI_MODEL": task["model"],
            "TURNWISE_SESSION": task["session"],
        }
        return await self._command(json.dumps(task["sample"]).encode(), variables)
