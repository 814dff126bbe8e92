"""OpenEnv: a game behind two servers on loopback, one of the openenv package, one that speaks the protocol by hand."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from turnwise.envs.openenv import OpenEnv

websockets = pytest.importorskip("websockets.sync.server")


class Countdown:
    """Count down from a number drawn by the seed; the third wrong number is a time limit."""

    def reset(self, seed: int | None) -> dict[str, Any]:
        self.left, self.wrong = int(np.random.default_rng(seed).integers(3, 1000)), 0
        return self.told(None, False)

    def step(self, message: str) -> dict[str, Any]:
        if message == "crash":
            raise RuntimeError("the game is broken")
        right = message == str(self.left - 1)
        self.left, self.wrong = self.left - right, self.wrong + (not right)
        return self.told(float(right), message == "stop" or self.wrong == 3)

    def told(self, reward: float | None, done: bool) -> dict[str, Any]:
        facts = {"truncated": self.wrong == 3, "success": self.wrong == 0} if done else {}
        return {"observation": {"message": f"{self.left}?"}, "reward": reward, "done": done, "metadata": facts}


def by_hand(connection: Any) -> None:
    game = Countdown()
    with contextlib.suppress(Exception):  # the client has gone
        for message in connection:
            asked = json.loads(message)
            try:
                data = game.reset(asked["data"]["seed"]) if asked["type"] == "reset" else game.step(**asked["data"])
                connection.send(json.dumps({"type": "observation", "data": data}))
            except RuntimeError as error:
                connection.send(json.dumps({"type": "error", "data": {"message": str(error)}}))


@contextlib.contextmanager
def hand_made() -> Iterator[str]:
    with websockets.serve(by_hand, "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()


@contextlib.contextmanager
def genuine() -> Iterator[str]:
    pytest.importorskip("openenv")
    import uvicorn
    from openenv.core.env_server import create_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State

    class Said(Action):
        message: str

    class Told(Observation):
        message: str = ""

    def told(answer: dict[str, Any]) -> Told:
        rest = {key: answer[key] for key in ("reward", "done", "metadata")}
        return Told(**answer["observation"], **rest)

    class Game(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self.game = Countdown()

        def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Told:
            return told(self.game.reset(seed))

        def step(self, action: Said, timeout_s: float | None = None, **_: Any) -> Told:
            return told(self.game.step(action.message))

        @property
        def state(self) -> State:
            return State()

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    app = create_app(Game, Said, Told, max_concurrent_envs=4)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module", params=[hand_made, genuine], ids=lambda maker: maker.__name__)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with request.param() as address:
        yield address


@pytest.fixture
def env(url: str) -> Iterator[OpenEnv]:
    env = OpenEnv(url)
    yield env
    env.close()


def right(observation: dict[str, str]) -> str:
    return str(int(observation["text"].removesuffix("?")) - 1)


def test_it_is_a_gymnasium_environment(env):
    check_env(env, skip_render_check=True)


def test_the_seed_decides_the_level(url, env):
    other = OpenEnv(url)
    firsts = [env.reset(seed=seed)[0]["text"] for seed in (5, 6, 7, 5)]
    assert firsts[0] == firsts[3] == other.reset(seed=5)[0]["text"]
    assert len(set(firsts)) == 3
    other.close()


def test_two_environments_play_two_games(url, env):
    other = OpenEnv(url)
    mine, _ = env.reset(seed=1)
    theirs, _ = other.reset(seed=2)
    mine, *_ = env.step(right(mine))
    assert other.step(right(theirs))[0]["text"] == f"{int(right(theirs))}?"
    other.close()


def test_done_is_terminated_unless_the_server_says_truncated(env):
    observation, _ = env.reset(seed=1)
    observation, reward, terminated, truncated, info = env.step(right(observation))
    assert (reward, terminated, truncated, info) == (1.0, False, False, {})
    *_, terminated, truncated, info = env.step("stop")
    assert (terminated, truncated, info) == (True, False, {"success": False})
    env.reset(seed=1)
    ends = [env.step("no")[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]


def test_a_limit_of_turns_of_ours_truncates(url):
    env = OpenEnv(url, max_turns=2)
    for _ in range(2):
        env.reset(seed=1)
        assert [env.step("no")[2:4] for _ in range(2)] == [(False, False), (False, True)]
    env.close()


def test_what_the_server_cannot_do_is_said(url, env):
    env.reset(seed=1)
    with pytest.raises(RuntimeError, match="the game is broken"):
        env.step("crash")
    wrong = OpenEnv(url, text="board")
    with pytest.raises(ValueError, match=r"text is 'board', but the server's observation holds .*message"):
        wrong.reset(seed=1)
    wrong.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"url": "127.0.0.1:8000"}, "url is '127.0.0.1:8000', but must be an address"),
        ({"url": "http://127.0.0.1:1", "max_turns": 0}, "max_turns is 0"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, message):
    with pytest.raises(ValueError, match=message):
        OpenEnv(**arguments)
