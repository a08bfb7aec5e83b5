"""The sinks that the registry names, each with its real package; skipped where that is not installed."""

import json
import os
import struct
import subprocess
import sys
from collections import defaultdict
from importlib.util import find_spec

import pytest

from harnessgym.metrics.sink import SinkPlace
from harnessgym.registry import load, names

REQUIRED = os.environ.get("HARNESSGYM_REQUIRE", "").split(",")


def needed(package, word):
    return pytest.mark.skipif(
        find_spec(package) is None and word not in REQUIRED,
        reason=f"{package} is not installed: pip install {package}",
    )


needs_tensorboard = needed("tensorboard", "metrics")


@pytest.fixture
def place(tmp_path):
    return SinkPlace(tmp_path, "0" * 16 + "abcdef12", "demo", "project", {"seed": 3, "trainer": {"lr": 0.1}})


def scalars(folder):
    """What TensorBoard itself reads: step and value by tag."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "tensorboard")).Reload()
    return {
        tag: [(point.step, point.wall_time, point.value) for point in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


@pytest.mark.parametrize("name", names("sink"))
def test_every_sink_says_what_it_needs_without_importing_it(name):
    code = f"import sys; from harnessgym.registry import load; needs = load('sink', {name!r}).needs; print(needs in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "False"


@needs_tensorboard
def test_tensorboard_reads_what_was_written(place):
    sink = load("sink", "tensorboard")(place)
    assert sink.last_step() == -1
    sink.write(1, 1000.0, {"trainer/reward": 0.5, "idle/trainer": 0.25})
    sink.write(2, 1005.5, {"trainer/reward": 0.75})
    sink.close()
    assert scalars(place.folder) == {
        "trainer/reward": [(1, 1000.0, 0.5), (2, 1005.5, 0.75)],
        "idle/trainer": [(1, 1000.0, 0.25)],
    }


@needs_tensorboard
def test_tensorboard_holds_what_an_earlier_start_wrote(place):
    kind = load("sink", "tensorboard")
    for step in (1, 2):
        sink = kind(place)
        assert sink.last_step() == (-1 if step == 1 else 1)
        sink.write(step, float(step), {"x": step / 2})
        sink.close()
    assert scalars(place.folder)["x"] == [(1, 1.0, 0.5), (2, 2.0, 1.0)]


def held(place):
    sink = load("sink", "tensorboard")(place)
    sink.close()
    return sink.last_step()


@needs_tensorboard
def test_what_tensorboard_flushed_survives_a_kill_and_half_an_event_is_no_step(place):
    code = f"""
import os, signal
from pathlib import Path
from harnessgym.metrics.sink import SinkPlace
from harnessgym.metrics.sinks.tensorboard import TensorBoard
sink = TensorBoard(SinkPlace(Path({str(place.folder)!r}), "run", "demo", "p"))
sink.write(1, 1.0, {{"x": 1.0}})
sink.write(2, 2.0, {{"x": 2.0}})
sink.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=60, capture_output=True)
    assert done.returncode == -9, done.stderr
    (path,) = (place.folder / "tensorboard").iterdir()
    assert held(place) == 2
    path.write_bytes(path.read_bytes()[:-5])
    sink = load("sink", "tensorboard")(place)
    assert sink.last_step() == 1
    sink.write(2, 2.0, {"x": 2.0})
    sink.close()
    assert [(step, value) for step, _, value in sorted(scalars(place.folder)["x"])] == [(1, 1.0), (2, 2.0)]


@needs_tensorboard
def test_tensorboard_needs_no_torch():
    code = (
        "import sys, tempfile, pathlib; from harnessgym.metrics.sink import SinkPlace; "
        "from harnessgym.metrics.sinks.tensorboard import TensorBoard; "
        "sink = TensorBoard(SinkPlace(pathlib.Path(tempfile.mkdtemp()), 'r', 'n', 'p')); sink.write(1, 1.0, "
        "{'x': 1.0}); "
        "sink.close(); print([name for name in ('torch', 'tensorflow') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


SESSION = """
import json, sys
from pathlib import Path
from harnessgym.metrics.sink import SinkPlace
from harnessgym.registry import load
sink = load("sink", sys.argv[1])(SinkPlace(Path(sys.argv[2]), "0" * 16 + "abcdef12", "demo", "project", {"seed": 3}))
print("held", json.dumps(sink.last_step()))
for step in json.loads(sys.argv[3]):
    sink.write(step, 1000.0 + step, {"trainer/reward": step / 10})
sink.flush()
sink.close()
"""


def session(name, folder, steps, **environment):
    """A start of a run in a process of its own, whose packages know nothing of a user; what its sink held
    at first.
    """
    known = {key: value for key, value in os.environ.items() if not key.startswith(("WANDB_", "TRACKIO_"))}
    command = [sys.executable, "-c", SESSION, name, str(folder), json.dumps(steps)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=200, env={**known, **environment}
    )
    assert done.returncode == 0, done.stderr
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("held")).split()[1])


@needed("wandb", "wandb")
def test_wandb_is_offline_unless_told_otherwise_and_keeps_one_run(place):
    for steps in ([1, 2], [3]):
        held = session(
            "wandb",
            place.folder,
            steps,
            WANDB_CONFIG_DIR=str(place.folder),
            WANDB_CACHE_DIR=str(place.folder),
        )
        assert held is None
    logged = defaultdict(list)
    files = sorted(place.folder.glob("wandb/offline-run-*/*.wandb"))
    assert {path.stem for path in files} == {f"run-{place.run_id}"}
    for path in files:
        for record in wandb_records(path):
            values = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
            if values:
                logged[values["_step"]].append(values["trainer/reward"])
    assert logged == {1: [0.1], 2: [0.2], 3: [0.3]}


def wandb_records(path):
    """Records of an offline run: protobufs in LevelDB's log format (blocks of 32 KiB; crc, length, type
    before each piece).
    """
    from wandb.proto.wandb_internal_pb2 import Record

    data, position, pieces = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
            continue
        length, kind = struct.unpack("<HB", data[position + 4 : position + 7])
        pieces += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield Record.FromString(pieces)
            pieces = b""


@needed("trackio", "trackio")
def test_trackio_keeps_one_run_and_knows_where_it_stopped(place):
    assert session("trackio", place.folder, [1, 2], TRACKIO_DIR=str(place.folder / "trackio")) == -1
    assert session("trackio", place.folder, [3], TRACKIO_DIR=str(place.folder / "trackio")) == 2
    run = f"{place.name}-{place.run_id[-8:]}"
    asked = ["get", "metric", "--project", "project", "--run", run, "--metric", "trainer/reward", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "trackio.cli", *asked], capture_output=True, text=True, check=True, timeout=200,
        env={**os.environ, "TRACKIO_DIR": str(place.folder / "trackio")},
    )  # fmt: skip
    assert [(each["step"], each["value"]) for each in json.loads(done.stdout)["values"]] == [
        (1, 0.1),
        (2, 0.2),
        (3, 0.3),
    ]
