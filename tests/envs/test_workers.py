"""Where environments run: the same turns everywhere, and nothing that one of them does reaches the trainer."""

import asyncio
import json
import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from faulty import foretell
from helpers import Scripted, make_tokenizer, play_config

from turnwise.collector import Collector
from turnwise.config import Config
from turnwise.envs.checked import CheckedEnvironment, make_environment, try_environment
from turnwise.envs.host import Host
from turnwise.envs.workers import Workers
from turnwise.failures import EnvironmentFailure
from turnwise.render import Renderer
from turnwise.seeds import episode_seed
from turnwise.types import Observation, Segment

KINDS = ["inline", "thread", "process"]


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(make_tokenizer())


def faulty(workers: str, schedule: Any = None, n_env: int = 2, e_len: int = 4, **environment: Any) -> Config:
    """`mode` is of the rollout."""
    mode = environment.pop("mode", "async")
    return play_config(
        "faulty:Faulty",
        environment={"workers": workers, "kwargs": schedule or {}, "reward": "native", **environment},
        rollout={"n_env": n_env, "e_len": e_len, "mode": mode},
        memory={"use": "window", "turns": 1},
        parser={"cue": "Act."},
    )


def walk(prompt: str, _: int) -> str:
    """What to do is a function of what is shown: go, stay, or say that one walks, which is translated."""
    turn, gone = (int(found) for found in re.findall(r"turn (\d+) gone (\d+)", prompt)[-1])
    return f"ACTION: {('go', 'stay', f'walk {turn}')[(turn + gone) % 3]}"


def collect(config: Config, renderer: Renderer, batches: int = 1) -> tuple[list[list[Segment]], list[Any]]:
    with closing(Collector(config, renderer)) as collector:
        played = []
        for _ in range(batches):
            played.append((collector.collect(Scripted(renderer, walk)), collector.tally))
        return [segments for segments, _ in played], [tally for _, tally in played]


def shown(segments: list[Segment], slots: int) -> list[list[tuple[int, int]]]:
    """The level and the turn that each turn of a slot saw."""
    pattern = re.compile(r"level (\d+) turn (\d+)")
    texts = [[t.observation.text for one in segments if one.slot == slot for t in one.turns] for slot in range(slots)]
    return [[(int(m[1]), int(m[2])) for text in mine if (m := pattern.match(text))] for mine in texts]


# -- the same everywhere


@pytest.mark.parametrize("mode", ["lockstep", "async"])
def test_the_same_seed_gives_the_same_turns_wherever_environments_run(renderer, mode):
    """Raised errors and nonsense included; two processes are shared by five slots."""
    schedule = {"crash": 0.05, "garbage": 0.05, "length": 12}
    expected = collect(faulty("inline", schedule, 5, 8, mode="lockstep"), renderer, 3)
    assert len({turn.action for s in expected[0] for one in s for turn in one.turns}) > 5
    assert any(t.action.status == "translated" for s in expected[0] for one in s for t in one.turns if t.action)
    for workers in KINDS:
        some = {"processes": 2} if workers == "process" else {}
        segments, tallies = collect(faulty(workers, schedule, 5, 8, mode=mode, **some), renderer, 3)
        assert segments == expected[0]
        counted = [[(tally.failures, tally.dropped_turns) for tally in t] for t in (tallies, expected[1])]
        assert counted[0] == counted[1] and sum(failures for failures, _ in counted[0]) > 5


@pytest.mark.parametrize("workers", KINDS)
def test_a_restored_slot_goes_on_wherever_its_environment_runs(renderer, workers):
    config = faulty(workers, {"length": 50}, e_len=5, **({"processes": 1} if workers == "process" else {}))
    steady, _ = collect(config, renderer, 2)
    with closing(Collector(config, renderer)) as collector:
        collector.collect(Scripted(renderer, walk))
        saved = json.loads(json.dumps(collector.state()))
    with closing(Collector(config, renderer)) as collector:
        assert collector.restore(saved) == 0
        assert collector.collect(Scripted(renderer, walk)) == steady[1]


# -- by schedule


@pytest.mark.parametrize(("workers", "n_env", "e_len", "deadly"), [("thread", 20, 20, 0.0), ("process", 4, 20, 0.2)])
def test_failures_are_survived_and_counted_exactly_as_scheduled(renderer, workers, n_env, e_len, deadly):
    """800 turns in threads, 160 in processes of one environment each; benchmarks/faults.py plays 10,000 in both."""
    schedule = {"crash": 0.05, "deadly": deadly, "hang": 0.01, "garbage": 0.01}
    processes = {"processes": n_env} if workers == "process" else {}
    # Of 20 turns in a row one in four goes well: bad luck is not to end the run.
    config = faulty(workers, schedule, n_env, e_len, timeout_s=3.0, max_failures=1000, **processes)
    config.seed = 4  # by whose luck 18 calls hang, few of them one after the other
    batches, tallies = collect(config, renderer, 2)
    for segments, tally, foretold in zip(batches, tallies, foretell(config, 2), strict=True):
        assert shown(segments, n_env) == foretold.turns
        assert (tally.failures, tally.dropped_turns) == (foretold.failures, foretold.dropped_turns)
        assert tally.failures > 5 and tally.dropped_turns > 5


# -- a process and who lives there


def seed_of(slot: int, episode: int = 0) -> int:
    return episode_seed("train", 0, "Faulty", slot, episode)


@pytest.mark.parametrize(
    ("fate", "message"),
    [
        ("exit", "its process ended with exit code 3"),
        ("segfault", "its process ended with signal 11, Segmentation fault"),
        ("hang", "a call took longer than environment.timeout_s=3"),
    ],
)
def test_neighbours_lose_their_episodes_with_the_process_and_are_not_blamed(renderer, fate, message):
    """Slot 1 goes wrong in its third turn; even a limit of one failure does not end the run for slot 0."""
    schedule = {"planned": {f"{seed_of(1)}/3": fate}, "length": 1000}
    config = faulty("process", schedule, processes=1, timeout_s=3.0, mode="lockstep", max_failures=2)
    config.rollout.e_len = 6
    with closing(Collector(config, renderer)) as collector:
        told: list[str] = []
        for slot in collector.slots:
            drop = slot._drop
            slot._drop = lambda failure, drop=drop, slot=slot: (told.append(f"{slot.index}: {failure}"), drop(failure))
        segments = collector.collect(Scripted(renderer, walk))
        assert sorted(one.split(" failed: ")[1] for one in told) == sorted(
            [message, f"the process that it shared was lost, because {message}"]
        )
        assert [line[0] for line in sorted(told) if "shared" in line] == ["0"]
        assert collector.tally.failures == 2
        assert shown(segments, 2) == [[(seed_of(slot, 1), turn) for turn in range(6)] for slot in range(2)]


def test_one_failure_too_many_of_its_own_ends_the_run_with_a_sentence(renderer):
    schedule = {"crash": 1.0, "deadly": 1.0}
    with pytest.raises(ValueError, match=r"its process ended with exit code 3 \(2 times in a row"):
        collect(faulty("process", schedule, n_env=1, processes=1, max_failures=2), renderer)


def test_environments_of_several_processes_are_made_side_by_side(renderer, tmp_path):
    config = faulty("process", {"folder": str(tmp_path), "others": 3}, n_env=3, processes=3)
    config.environment.id = "faulty:Meeting"
    with closing(Collector(config, renderer)) as collector:
        assert sum(segment.acted for segment in collector.collect(Scripted(renderer, walk))) == 12


def test_no_more_processes_are_started_than_there_are_environments(renderer):
    before = set(multiprocessing.active_children())
    with closing(Collector(faulty("process", n_env=2, processes=7), renderer)):
        assert len(set(multiprocessing.active_children()) - before) == 2
    assert set(multiprocessing.active_children()) <= before


def test_processes_that_cannot_be_started_are_one_sentence(monkeypatch):
    before, start, began = set(multiprocessing.active_children()), SpawnProcess.start, []

    def start_one(process: SpawnProcess) -> None:
        if began:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        began.append(start(process))

    monkeypatch.setattr(SpawnProcess, "start", start_one)
    with pytest.raises(ValueError, match=r"could not be started: .* unavailable; lower environment\.processes"):
        Workers(faulty("process", processes=2).environment, 2)
    assert set(multiprocessing.active_children()) <= before


# -- making


@pytest.fixture(scope="module")
def pools() -> Iterator[Callable[[str], Workers]]:
    made = {kind: Workers(faulty(kind).environment, 1) for kind in ("inline", "thread")}
    made["process"] = Workers(faulty("process", processes=1).environment, 1)
    yield made.__getitem__
    for workers in made.values():
        workers.close()


@pytest.mark.parametrize("workers", KINDS)
@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"id": "faulty:Nothing"}, "has no Nothing"),
        ({"id": "faulty/Nothing-v0"}, "which Gymnasium does not know"),
        ({"kwargs": {"colour": "red"}}, "does not take the arguments {'colour': 'red'}"),
        ({"id": "strange:Refusing", "kwargs": {"error": "ValueError"}}, "^no such map$"),
        ({"id": "strange:Refusing", "kwargs": {"error": "UnicodeDecodeError"}}, "can't decode byte"),
        ({"id": "strange:Refusing", "kwargs": {"error": "OSError"}}, r"strange:Refusing \(Refusing\) failed: OSError"),
    ],
)
def test_an_environment_that_cannot_be_made_is_one_sentence_at_once(pools, workers, environment, message):
    config = play_config("faulty:Faulty", environment=environment)
    with pytest.raises(ValueError, match=message):
        _ = Host(config.environment, next(iter(config.environment.tasks)), pools(workers)).offer


def test_what_cannot_be_sent_to_a_process_is_told_at_once(pools):
    for _ in range(2):
        with pytest.raises((AttributeError, pickle.PicklingError)):
            pools("process").open(lambda: None).call("offer").result(10)


class Listed(gymnasium.Env[str, str]):
    """Offers actions in its own way."""

    kinds: dict[str, Callable[[], Any]] = {  # noqa: RUF012
        "array": lambda: np.array(["up", "down"]),
        "tuple": lambda: ("up", "down"),
        "iterator": lambda: iter(("up", "down")),
        "method": lambda: lambda: ["up", "down"],
        "set": lambda: {"up", "down"},
        "numbers": lambda: np.arange(2),
    }

    def __init__(self, kind: str):
        self.actions = self.kinds[kind]()


@pytest.mark.parametrize(("kind", "actions"), [("array", ["up", "down"]), ("tuple", ["up", "down"]), ("numbers", [])])
def test_actions_are_whatever_texts_can_be_listed(pools, kind, actions):
    config = play_config(f"{__name__}:Listed", environment={"kwargs": {"kind": kind}})
    assert Host(config.environment, "Listed", pools("inline")).offer.actions == actions


class Misspelt(Listed):
    """Tells what to do under a name that nobody knows, and shows a picture beside it."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return {"text": "a door", "instruction": "Go.", "image": b""}, {}


def test_a_key_of_an_observation_that_is_nearly_one_of_ours_is_refused():
    config = play_config(f"{__name__}:Misspelt", environment={"kwargs": {"kind": "array"}})
    with pytest.raises(EnvironmentFailure, match="'instruction', which nobody sees; did you mean 'instructions'"):
        CheckedEnvironment(config.environment, "Misspelt").reset(0)


class Bare(Listed):
    """Has nothing to tell beside what it shows."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return {"text": "a door", "cue": None, "instructions": 5 if seed else None}, {}


def test_nothing_is_no_text_and_a_number_is_refused():
    config = play_config(f"{__name__}:Bare", environment={"kwargs": {"kind": "array"}})
    environment = CheckedEnvironment(config.environment, "Bare")
    assert environment.reset(0) == Observation("a door", "", "")
    with pytest.raises(EnvironmentFailure, match="its observation has 5 as instructions, which is no text"):
        environment.reset(1)


@pytest.mark.parametrize("kind", ["set", "iterator", "method"])
def test_actions_that_may_be_others_the_next_time_are_refused(pools, kind):
    config = play_config(f"{__name__}:Listed", environment={"kwargs": {"kind": kind}})
    with pytest.raises(ValueError, match=r"the actions of .*:Listed are .*; they must be a list of texts"):
        _ = Host(config.environment, "Listed", pools("inline")).offer


class Changing(gymnasium.Env[str, str]):
    """Lists what is legal now, from the first reset on or always."""

    def __init__(self, early: bool, late: bool):
        self.late, self.turns = late, 0
        if early:
            self.actions = ["look"]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if not self.late:
            self.actions = ["look", "open"]
        return "a door", {}

    def step(self, action: str) -> Any:
        self.actions = ["enter"]
        return "a hall", 0.0, False, False, {}


@pytest.mark.parametrize(("early", "late"), [(True, True), (True, False), (False, False)])
def test_actions_that_are_others_by_now_are_refused(early, late):
    kwargs = {"early": early, "late": late}
    config = play_config(f"{__name__}:Changing", environment={"kwargs": kwargs})
    environment = CheckedEnvironment(config.environment, "Changing")
    with pytest.raises(ValueError, match=r"the actions of .*:Changing were .*; list all that there ever are, or leave"):
        environment.reset(0)
        environment.step("look")


@pytest.mark.parametrize("workers", KINDS)
def test_an_environment_is_made_played_asked_and_closed_in_one_thread(pools, workers, tmp_path):
    config = play_config("strange:Threaded", environment={"kwargs": {"log": str(tmp_path / "log")}})
    host = Host(config.environment, "Threaded", pools(workers))

    async def play() -> None:
        await host.reset(1)
        await host.step("go")
        assert await host.translate("**Walk_!**") == "go"
        assert await host.translate("") is None
        assert await host.expert() == "stay"
        host.renew()
        await host.reset(2)
        with pytest.raises(EnvironmentFailure, match="translated 'fly' to 'flap', which is no legal action"):
            await host.translate("fly")

    asyncio.run(play())
    calls = ["make", "reset", "step", "translate", "expert", "close"]
    log, deadline = tmp_path / "log", time.monotonic() + 20
    while "close" not in log.read_text() and time.monotonic() < deadline:
        time.sleep(0.01)  # the environment that was let go closes in its own time
    lines = [line.split() for line in log.read_text().splitlines()]
    first = lines[0][1:]
    assert [call for call, *where in lines if where == first][:6] == calls
    mine = [str(os.getpid()), str(threading.get_ident())]
    assert (first == mine) == (workers == "inline")
    assert (first[0] == mine[0]) == (workers != "process")


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_a_constructor_that_hangs_is_given_up(workers):
    config = play_config(
        "strange:Refusing", environment={"kwargs": {"error": "hang"}, "workers": workers, "timeout_s": 0.5}
    )
    with (
        closing(Workers(config.environment, 1)) as pool,
        pytest.raises(ValueError, match=r"a call took longer than environment\.timeout_s=0\.5"),
    ):
        _ = Host(config.environment, "Refusing", pool).offer


# -- the end


def gone(pid: int) -> bool:
    """Not even a zombie of ours; what a killed parent leaves to the system may wait there to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def eventually(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 30
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)
    return holds()


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_nothing_is_left_after_close(renderer, workers):
    threads, children = set(threading.enumerate()), set(multiprocessing.active_children())
    schedule = {"crash": 0.1, "deadly": 0.3 * (workers == "process")}
    some = {"processes": 1} if workers == "process" else {}
    _, tallies = collect(faulty(workers, schedule, max_failures=100, **some), renderer, 6)
    assert sum(tally.failures for tally in tallies) > 0
    assert eventually(lambda: set(threading.enumerate()) <= threads)
    assert set(multiprocessing.active_children()) <= children


def test_closing_does_not_wait_for_a_hung_call():
    config = faulty("process", {"planned": {"1/0": "hang"}}, processes=1)
    before = set(multiprocessing.active_children())
    workers = Workers(config.environment, 1)
    host = Host(config.environment, "Faulty", workers)
    (child,) = set(multiprocessing.active_children()) - before
    hung = host._worker.call("reset", 1)
    workers.close()
    assert hung.done() and isinstance(hung.exception(), EnvironmentFailure)
    assert not Path(f"/proc/{child.pid}").exists()


def test_closing_while_a_child_is_being_started_waits_for_it(monkeypatch):
    """One that has no process id yet cannot be killed."""
    config = faulty("process", {"planned": {"1/0": "exit"}}, processes=1)
    before, start, starting = set(multiprocessing.active_children()), SpawnProcess.start, threading.Event()
    workers = Workers(config.environment, 1)
    host = Host(config.environment, "Faulty", workers)
    assert isinstance(host._worker.call("reset", 1).exception(), EnvironmentFailure)
    host.renew()

    def start_late(process: SpawnProcess) -> None:
        starting.set()
        time.sleep(1)
        start(process)

    monkeypatch.setattr(SpawnProcess, "start", start_late)
    monkeypatch.setattr("turnwise.envs.workers.GRACE_S", 0.1)
    host._worker.call("offer")
    assert starting.wait(10)
    workers.close()
    assert set(multiprocessing.active_children()) <= before


def test_a_child_that_is_killed_while_idle_is_replaced(renderer):
    before = set(multiprocessing.active_children())
    with closing(Collector(faulty("process", {"length": 100}, n_env=1, processes=1), renderer)) as collector:
        collector.collect(Scripted(renderer, walk))
        (child,) = set(multiprocessing.active_children()) - before
        assert child.pid
        os.kill(child.pid, signal.SIGKILL)
        (segment,) = collector.collect(Scripted(renderer, walk))
        assert (segment.episode, len(segment.turns)) == (1, 4)
        assert (collector.tally.failures, collector.tally.dropped_turns) == (1, 0)
        assert "its process ended with signal 9, Killed" in collector.tally.last_failure
        assert not Path(f"/proc/{child.pid}").exists()


def test_what_a_hung_environment_has_started_goes_with_it(renderer, tmp_path, monkeypatch):
    monkeypatch.setenv("HELPER", str(tmp_path / "helper"))
    schedule = {"planned": {f"{seed_of(0)}/2": "hang with a helper"}, "length": 100}
    with closing(Collector(faulty("process", schedule, n_env=1, processes=1, timeout_s=3.0), renderer)) as collector:
        collector.collect(Scripted(renderer, walk))
        assert collector.tally.failures == 1
    assert eventually(lambda: gone(int((tmp_path / "helper").read_text())))


class Restarting(gymnasium.Env[str, str]):
    """Crashes at its third turn, and cannot be made again at once."""

    made = 0

    def __init__(self) -> None:
        Restarting.made += 1
        if Restarting.made == 2:
            json.loads("<html>still starting</html>")

    def reset(self, *, seed: int | None = None, options: Any = None):
        self.turns = 0
        return "Say something.", {}

    def step(self, action: str):
        self.turns += 1
        assert self.turns < 3 or Restarting.made > 1
        return "Go on.", 0.0, False, False, {}


@pytest.mark.parametrize("workers", ["inline", "thread"])
def test_one_that_cannot_be_made_again_at_once_is_tried_again(renderer, workers):
    Restarting.made = 0
    environment = {"workers": workers, "reward": "native"}
    config = play_config(f"{__name__}:Restarting", environment=environment, rollout={"n_env": 1, "e_len": 4})
    with closing(Collector(config, renderer)) as collector:
        (segment,) = collector.collect(Scripted(renderer, ["ACTION: x"]))
        assert (collector.tally.failures, len(segment.turns)) == (2, 4)
        assert "cannot be made again: Expecting value" in collector.tally.last_failure


ORPHANS = """
import multiprocessing, signal, time
from turnwise.config import EnvironmentConfig
from turnwise.envs.checked import CheckedEnvironment
from turnwise.envs.host import Host
from turnwise.envs.workers import Workers
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # who starts in the background inherits that it is ignored
    config = EnvironmentConfig(
        id="faulty:Faulty", kwargs={"planned": {"1/0": "hang"}}, workers="process", processes=2
    )
    workers = Workers(config, 2)
    busy, idle = (Host(config, "Faulty", workers) for _ in range(2))
    busy._worker.call("reset", 1)
    idle._worker.call("reset", 2).result()
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_children_do_not_outlive_their_parent(tmp_path, how):
    script = tmp_path / "orphans.py"
    script.write_text(ORPHANS)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    parent = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, env=environment)
    assert parent.stdout
    children = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(children) == 2 and not any(map(gone, children))
    parent.send_signal(how)
    parent.wait(timeout=60)
    assert eventually(lambda: all(map(gone, children)))


def test_ctrl_c_reaches_the_trainer_alone(renderer):
    """The terminal sends it to all processes; the children go on until they are told to end."""
    before = set(multiprocessing.active_children())
    with closing(Collector(faulty("process", {"length": 100}, processes=2), renderer)) as collector:
        collector.collect(Scripted(renderer, walk))
        for child in set(multiprocessing.active_children()) - before:
            assert child.pid
            os.kill(child.pid, signal.SIGINT)
        collector.collect(Scripted(renderer, walk))
        assert collector.tally.failures == 0


class Endless:
    """Knows no end, or breaks at it."""

    actions = ("up", "down")
    closed: ClassVar[list[bool]] = []

    def __init__(self, breaks: bool = False):
        if breaks:
            self.close = self._break

    def _break(self) -> None:
        self.closed.append(True)
        raise RuntimeError("it is stuck")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return "here", {}

    def step(self, action: str) -> Any:
        return "here", 0.0, True, False, {"success": True}


@pytest.mark.parametrize("breaks", [False, True])
def test_an_environment_that_cannot_be_closed_can_be_tried(breaks):
    Endless.closed.clear()
    config = play_config(f"{__name__}:Endless", environment={"kwargs": {"breaks": breaks}})
    try_environment(config.environment, "Endless")
    assert Endless.closed == [True] * breaks


class Ruled(Endless):
    """Uses up its rules."""

    def __init__(self, rules: dict[str, int]):
        super().__init__()
        self.size = rules.pop("size", 5)


@pytest.mark.parametrize("workers", KINDS)
def test_each_environment_is_made_of_what_the_recipe_says(pools, workers):
    config = play_config(f"{__name__}:Ruled", environment={"kwargs": {"rules": {"size": 9}}, "workers": workers})
    made = [make_environment(config.environment, "Ruled") for _ in range(2)]
    assert [one.size for one in made] == [9, 9]  # type: ignore[attr-defined]
    assert config.environment.kwargs == {"rules": {"size": 9}}
