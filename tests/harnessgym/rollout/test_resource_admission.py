import asyncio
import contextlib
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.outcome.failure import Cause, RolloutFailed
from harnessgym.rollout.resource_admission import Pressure, Room, room_of, shortage
from harnessgym.run_config.run import NodeSection

pytestmark = pytest.mark.anyio
MIB = 1 << 20
LARGE = 1 << 40
OPTIONS = NodeSection(memory_reserve_mb=256, memory_share=0.1, disk_reserve_mb=500)


@pytest.mark.parametrize(
    ("memory", "disk", "task_mb", "opened", "missing"),
    [
        (1_000, 1_000, 2_048, 3, None),
        (255, 1_000, 100, 3, "256 MiB of memory (255 MiB are free)"),
        (256, 1_000, 100, 3, None),
        (300, 1_000, 4_096, 3, "409 MiB of memory (300 MiB are free)"),
        (1_000, 499, 100, 3, "500 MiB of disk (499 MiB are free)"),
        (1_000, 20, 100, 3, "500 MiB of disk (20 MiB are free)"),
        (65, 2, 1 << 20, 0, None),
        (63, 1_000, 100, 0, "64 MiB of memory (63 MiB are free)"),
        (1_000, 0, 100, 0, "1 MiB of disk (0 MiB are free)"),
    ],
)
def test_what_must_be_free(memory, disk, task_mb, opened, missing):
    found = shortage(Room(memory * MIB, disk * MIB, LARGE), task_mb, OPTIONS, opened)
    assert (found and found.text) == missing


@given(
    room=st.tuples(st.integers(0, 2_000), st.integers(0, 2_000)),
    more=st.tuples(st.integers(0, 500), st.integers(0, 500)),
    task_mb=st.integers(1, 20_000),
    opened=st.integers(0, 50),
)
def test_more_room_never_refuses_what_less_room_admits_and_a_lone_sandbox_needs_the_least(
    room, more, task_mb, opened
):
    less = Room(room[0] * MIB, room[1] * MIB, LARGE)
    larger = Room((room[0] + more[0]) * MIB, (room[1] + more[1]) * MIB, LARGE)
    if shortage(less, task_mb, OPTIONS, opened) is None:
        assert shortage(larger, task_mb, OPTIONS, opened) is None
        assert shortage(less, task_mb, OPTIONS, 0) is None


def test_this_machines_room_is_read_also_for_a_folder_that_is_not_made_yet(tmp_path):
    found = room_of(tmp_path / "not" / "yet")
    assert found.memory > 0
    assert found.disk > 0
    assert found.disk <= room_of(tmp_path).disk * 1.1


def test_a_disk_that_is_nearly_full_is_seen(small_disk):
    for megabytes, refused in ((1, False), (4, False), (6, True)):
        with contextlib.suppress(OSError):
            (small_disk / "filler").write_bytes(bytes(megabytes * MIB))
        found = shortage(room_of(small_disk), 1, OPTIONS, opened=0)
        assert (found is not None and found.cause is Cause.HOST_DISK_FULL) == refused
    (small_disk / "filler").write_bytes(bytes(4 * MIB))
    assert shortage(room_of(small_disk), 1, OPTIONS, opened=3) is None, "a small disk has a small reserve"


async def test_one_waits_until_there_is_room_and_says_so_once(tmp_path, caplog):
    caplog.set_level(logging.INFO, "harnessgym.node")
    rooms = [Room(10_000 * MIB, 10_000 * MIB, LARGE)]
    pressure = Pressure(tmp_path, OPTIONS, look=lambda folder: rooms[-1])
    async with pressure.admitted(100, "rollout a"):
        rooms.append(Room(100 * MIB, 10_000 * MIB, LARGE))
        assert await pressure.tight()
        entered = asyncio.Event()

        async def second():
            async with pressure.admitted(100, "rollout b"):
                entered.set()
                assert pressure.opened == 2

        waiting = asyncio.create_task(second())
        await asyncio.sleep(0.7)
        assert not entered.is_set()
        rooms.append(Room(10_000 * MIB, 10_000 * MIB, LARGE))
        await asyncio.wait_for(waiting, 2.0)
        assert not await pressure.tight()
    assert pressure.opened == 0
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert "rollout b waits for 256 MiB of memory (100 MiB are free); 1 sandboxes are open" in told[0]
    assert "rollout b goes on" in told[1]


async def test_with_nothing_running_one_is_let_in_on_a_machine_that_is_merely_tight(tmp_path):
    pressure = Pressure(tmp_path, OPTIONS, look=lambda folder: Room(100 * MIB, 100 * MIB, LARGE))
    assert not await pressure.tight()
    async with asyncio.timeout(1.0), pressure.admitted(100_000, "rollout a"):
        assert pressure.opened == 1


@pytest.mark.parametrize(
    ("room", "cause", "words"),
    [
        (Room(10 * MIB, 10_000 * MIB, LARGE), Cause.HOST_REFUSED, "64 MiB of memory"),
        (Room(10_000 * MIB, 0, LARGE), Cause.HOST_DISK_FULL, "1 MiB of disk"),
    ],
)
async def test_a_machine_that_is_full_is_an_error_that_says_so(tmp_path, room, cause, words):
    pressure = Pressure(tmp_path, OPTIONS, look=lambda folder: room, max_wait_s=0.3)
    with pytest.raises(RolloutFailed, match=f"This machine is full: rollout a needs {words}") as caught:
        async with pressure.admitted(100, "rollout a"):
            pass
    assert caught.value.cause is cause
    assert pressure.opened == 0


async def test_a_node_under_pressure_runs_one_rollout_at_a_time_and_finishes_all(make_line):
    async with make_line("good", group_size=4, max_running=4) as line:
        pressure, most = line.node.pressure, []
        pressure._look = lambda folder: Room(100 * MIB, 10_000 * MIB, LARGE)

        def enough(line):
            most.append(pressure.opened)
            return line.groups().get("complete", 0) == 1

        await line.run(enough)
        assert max(most) == 1
        assert [row["verdict"] for row in line.rollouts()] == ["valid"] * 4
