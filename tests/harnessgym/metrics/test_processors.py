import json
import subprocess
import sys
import time

from harnessgym.metrics.window import Processors
from harnessgym.process import identify


def test_a_process_that_works_shows_one_that_sleeps_does_not_one_that_ended_is_left_out(tmp_path):
    path = tmp_path / "processes.json"
    works = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    sleeps = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        known = {name: identify(process.pid) for name, process in (("works", works), ("sleeps", sleeps))}
        recorded = {name: [process.pid, process.started] for name, process in known.items()}
        path.write_text(
            json.dumps(
                recorded | {"another": [works.pid, known["works"].started + 1], "gone": [2**22 + 1, 5]}
            )
        )
        processors = Processors(path)
        assert processors.look() == {"works": None, "sleeps": None}
        deadline, shares = time.monotonic() + 60, {}
        while not shares.get("works") and time.monotonic() < deadline:
            time.sleep(0.2)
            shares = processors.look()
        assert 0.0 < shares["works"] < 1.2
        assert shares["works"] > shares["sleeps"]
        works.kill()
        works.wait()
        assert set(processors.look()) == {"sleeps"}
    finally:
        for process in (works, sleeps):
            process.kill()
            process.communicate()


def test_a_record_that_is_missing_or_not_ours_names_nobody(tmp_path):
    processors = Processors(tmp_path / "processes.json")
    assert processors.look() == {}
    for text in ("", "[]", '{"x": 1}', '{"x": [1, 2, 3]}'):
        (tmp_path / "processes.json").write_text(text)
        assert processors.look() == {}
