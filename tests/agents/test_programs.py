"""Programs in processes of their own: whatever befalls their episode, nothing of them stays behind."""

import asyncio
import os
import select

import pytest

from turnwise.agents import programs
from turnwise.agents.programs import Command

# Neither the shell nor its child stops when asked to; while either lives, the pipe has a writer.
DEAF = "sh -c 'exec 3>{pipe}; trap \"\" TERM; sleep 60 & echo up >&3; wait'"


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(("cancels", "grace_s"), [(1, 0.1), (2, 600)])
def test_a_program_that_does_not_stop_is_killed_with_all_that_it_started(
    tmp_path, monkeypatch, cancels, grace_s, at_once
):
    monkeypatch.setattr(programs, "_GRACE_S", grace_s)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    async def play() -> None:
        running = asyncio.create_task(Command(DEAF.format(pipe=pipe))(b"", {}))
        await asyncio.sleep(0)
        if at_once:  # the loop stands still meanwhile, so that the program is cancelled while it starts
            select.select([reader], [], [], 30)
        else:
            await asyncio.to_thread(select.select, [reader], [], [], 30)
        assert os.read(reader, 3) == b"up\n"
        for _ in range(cancels):
            running.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(play())
    ended, _, _ = select.select([reader], [], [], 5)
    assert ended and os.read(reader, 3) == b""
    os.close(reader)
