"""What becomes of a run's processes when one ends, a machine is lost, the proxy moves, nodes come and go."""

import json
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from harnessgym.cluster.backend import desired_nodes, set_desired_nodes
from harnessgym.cluster.fleet import Fleet
from harnessgym.cluster.process_host import HostInfo, release
from harnessgym.errors import ConfigError, HarnessGymError
from harnessgym.process import identify
from harnessgym.run_config.cluster import Need
from harnessgym.run_config.run import RunConfig
from harnessgym.run_folder import RunFolder, write_json
from harnessgym.store import TraceStore
from harnessgym.supervisor.process_settings import LaunchPlan
from harnessgym.supervisor.silence import SilenceWatch
from tests.harnessgym.cluster.local_ground import LocalGround, Promise, QuietPlace

POLICY = Path(__file__).parents[3] / "environments/lookup/policy"
SILENT_S = 6.0
ALL = {"proxy", "engine-0", "engine-1", "node-0", "node-1", "trainer"}


class Harbour:
    """A fleet whose supervisor is the test."""

    def __init__(self, tmp_path, *, ground=None, engine=None, processes=1, **cluster):
        self.folder = RunFolder(tmp_path / "run")
        self.config = RunConfig.model_validate(
            {
                "name": "fleet",
                "policy": {"path": str(POLICY)},
                "tasks": {"set": "lookup"},
                "harnesses": [{"name": "a"}],
                "engine": engine or {},
                "store": {"url": "postgresql+psycopg:///of_nobody"},
                "supervisor": {"max_restarts": 3},
                "trainer": {"processes": processes},
                "cluster": {"nodes": 2, "silent_s": SILENT_S, "wait_s": 20.0} | cluster,
            }
        )
        write_json(self.folder.config_path, self.config.model_dump(mode="json"))
        self.ground = ground or LocalGround(SILENT_S)
        self.fleet = Fleet(self.folder, self.config, self.ground)
        self.told = []

    def start(self):
        self.fleet.open()
        return self.start_all()

    def start_all(self):
        launch_plan = LaunchPlan(self.folder, self.config, "run", "policy", "key", "process", training=True)
        self.fleet.start_all(launch_plan)
        return self

    def until(self, condition, timeout_s=30):
        """Tend, start again what ends, until something is so."""
        deadline = time.monotonic() + timeout_s
        while not (found := condition()):
            assert time.monotonic() < deadline, self.told
            self.told += self.fleet.reconcile()
            for name, _ in self.fleet.exited():
                self.fleet.restart(name)
            time.sleep(0.02)
        return found

    def ended(self, name):
        """Tend until a process has ended; returns its exit status."""
        deadline = time.monotonic() + 30
        while name not in (found := dict(self.fleet.exited())):
            assert time.monotonic() < deadline, self.told
            self.told += self.fleet.reconcile()
            time.sleep(0.02)
        return found[name]

    def running(self, name):
        slot = self.fleet.by_name.get(name)
        return slot is not None and slot.state == "running" and self.up(name)

    def up(self, name):
        return self.ground.at(name).place.look(0, 0).log.startswith(b"up")

    def settings(self, name):
        return json.loads((self.ground.at(name).place.folder / "settings.json").read_text())

    def pid(self, name):
        return identify(self.fleet.by_name[name].pid)

    def places(self, name):
        return len(self.ground.machines[name])


@pytest.fixture
def make(tmp_path):
    made = []

    def harbour(**options):
        made.append(Harbour(tmp_path, **options))
        return made[-1]

    yield harbour
    for each in made:
        each.fleet.close()
        each.ground.end()


def test_a_stopped_process_is_killed_and_started_again_in_its_place(make, tmp_path):
    harbour = make().start()
    harbour.until(lambda: all(harbour.running(name) for name in ALL))
    pids = {name: harbour.pid(name) for name in ALL}
    with TraceStore.create(f"sqlite:///{tmp_path}/traces.db") as store:
        watch = SilenceWatch(store, "run", harbour.fleet, 2.0, harbour.folder.silent_path)
        pids["engine-1"].signal(signal.SIGSTOP)

        def replaced():
            harbour.told += watch.look()
            return harbour.fleet.by_name["engine-1"].restarts and harbour.running("engine-1")

        harbour.until(replaced)
    assert sum("The engine-1 process" in line and "silent for 2 s" in line for line in harbour.told) == 1
    assert {name for name in ALL if harbour.pid(name) != pids[name]} == {"engine-1"}
    assert harbour.places("engine-1") == 1
    assert harbour.fleet.by_name["engine-1"].restarts == 1


def test_everything_is_placed_told_where_the_proxy_is_and_ended(make):
    harbour = make().start()
    assert set(harbour.fleet.by_name) == ALL
    assert harbour.fleet.lacks("process") is None
    harnesses, control = harbour.fleet.by_name["proxy"].urls
    assert harbour.settings("node-1")["proxy_url"] == harnesses
    assert (
        harbour.settings("node-1")["control_url"]
        == harbour.settings("engine-0")["agent"]["control_url"]
        == control
    )
    assert harbour.settings("engine-1")["agent"]["address"] == harbour.fleet.by_name["engine-1"].urls[0]
    assert harbour.settings("node-0")["run"].startswith(str(harbour.ground.at("node-0").place.folder))
    assert harbour.settings("trainer")["run"] == str(harbour.folder.root)
    harbour.until(lambda: all(harbour.running(name) for name in ALL))
    assert set(json.loads((harbour.folder.root / "places.json").read_text())) == ALL
    processes = [harbour.pid(name) for name in ALL]
    harbour.fleet.close()
    assert not any(process.alive() for process in processes)
    assert not any(
        machine.place.folder.exists() for machines in harbour.ground.machines.values() for machine in machines
    )
    assert harbour.ground.closed
    assert json.loads((harbour.folder.root / "places.json").read_text()) == {}


def test_outside_engines_are_followed_from_places_of_their_own(make):
    outside = [
        {"kind": "vllm", "url": "http://10.0.0.1:8000"},
        {"kind": "sglang", "url": "http://10.0.0.2:30000"},
    ]
    harbour = make(engine={"workers": 0, "outside": outside}).start()
    names = {"vllm-10.0.0.1-8000", "sglang-10.0.0.2-30000"}
    assert set(harbour.fleet.by_name) == (ALL | names) - {"engine-0", "engine-1"}
    harbour.until(lambda: all(harbour.running(name) for name in names))
    told = harbour.settings("sglang-10.0.0.2-30000")
    assert (told["engine"], told["engine_url"], told["worker_id"]) == (
        "sglang",
        "http://10.0.0.2:30000",
        "sglang-10.0.0.2-30000",
    )
    assert told["control_url"] == harbour.fleet.by_name["proxy"].urls[1]
    assert told["scratch"] == str(harbour.folder.staged)
    harbour.ground.at("proxy").lose()
    harbour.until(
        lambda: (
            harbour.running("proxy")
            and harbour.settings("vllm-10.0.0.1-8000")["control_url"] != told["control_url"]
        )
    )


def test_what_ends_is_told_and_started_again_where_it_was(make):
    harbour = make().start()
    harbour.until(lambda: harbour.running("engine-0"))
    urls, first = harbour.fleet.by_name["engine-0"].urls, harbour.pid("engine-0")
    harbour.ground.at("engine-0").tell(7)
    assert harbour.ended("engine-0") == 7
    assert harbour.fleet.log_tail("engine-0") == "harnessgym: It ended."
    harbour.fleet.restart("engine-0")
    harbour.until(lambda: harbour.running("engine-0"))
    assert harbour.fleet.by_name["engine-0"].urls == urls
    assert harbour.pid("engine-0") != first
    assert harbour.places("engine-0") == 1
    harbour.until(
        lambda: (
            harbour.fleet.log_path("engine-0").read_text() == "up engine\nharnessgym: It ended.\nup engine\n"
        )
    )


def test_restarts_are_bounded(make):
    harbour = make().start()
    for _ in range(3):
        harbour.until(lambda: harbour.running("trainer"))
        harbour.ground.at("trainer").tell(1)
        assert harbour.ended("trainer") == 1
        harbour.fleet.restart("trainer")
    harbour.until(lambda: harbour.running("trainer"))
    harbour.ground.at("trainer").tell(1)
    harbour.ended("trainer")
    with pytest.raises(HarnessGymError, match=r"(?s)trainer process ended 4 times.*It ended"):
        harbour.fleet.restart("trainer")


def test_a_lost_machine_is_replaced_when_its_process_must_have_ended(make):
    harbour = make().start()
    harbour.until(lambda: harbour.running("trainer"))
    first = harbour.pid("trainer")
    harbour.ground.at("trainer").lose()
    assert harbour.ended("trainer") == -signal.SIGKILL
    assert not first.alive()
    assert f"has not answered for {SILENT_S:g} s" in harbour.told[-1]
    harbour.fleet.restart("trainer")
    harbour.until(lambda: harbour.running("trainer"))
    assert harbour.places("trainer") == 2
    assert {name: harbour.places(name) for name in ALL - {"trainer"}} == dict.fromkeys(ALL - {"trainer"}, 1)


def test_where_the_proxy_went_engines_and_nodes_are_told(make):
    harbour = make().start()
    harbour.until(lambda: all(harbour.running(name) for name in ALL))
    old, trainer = harbour.fleet.by_name["proxy"].urls, harbour.pid("trainer")
    harbour.ground.at("proxy").lose()
    told = ("node-0", "node-1", "engine-0", "engine-1")
    harbour.until(lambda: all(harbour.fleet.by_name[name].restarts == 1 for name in told))
    harbour.until(lambda: all(harbour.running(name) for name in ALL))
    harnesses, control = harbour.fleet.by_name["proxy"].urls
    assert harnesses not in old
    assert harbour.places("proxy") == 2
    for name in told:
        assert control in json.dumps(harbour.settings(name))
        assert harbour.fleet.by_name[name].restarts == 1
        assert harbour.places(name) == 1
    assert trainer.alive()


def test_nodes_join_and_leave(make):
    harbour = make().start()
    set_desired_nodes(harbour.folder, 4)
    harbour.until(lambda: harbour.running("node-2") and harbour.running("node-3"))
    assert harbour.settings("node-3")["sandbox"] == "process"
    set_desired_nodes(harbour.folder, 1)
    harbour.until(lambda: {name for name in harbour.fleet.by_name if name.startswith("node")} == {"node-0"})
    assert [line for line in harbour.told if "has left" in line] != []
    assert harbour.fleet.by_name["node-0"].restarts == 0
    set_desired_nodes(harbour.folder, 2)
    harbour.until(lambda: harbour.places("node-1") == 2 and harbour.running("node-1"))
    harbour.until(lambda: not harbour.ground.machines["node-3"][0].place.folder.exists())


def test_a_node_that_leaves_may_be_lost_too(make):
    harbour = make().start()
    harbour.until(lambda: harbour.running("node-1"))
    harbour.ground.at("node-1").lose()
    set_desired_nodes(harbour.folder, 1)
    harbour.until(lambda: "node-1" not in harbour.fleet.by_name)
    assert harbour.places("node-1") == 1


def test_without_room_a_lost_node_waits_and_the_others_go_on(make):
    harbour = make().start()
    harbour.until(lambda: harbour.running("node-0") and harbour.running("node-1"))
    harbour.ground.free = 0
    harbour.ground.at("node-0").lose()
    harbour.until(lambda: isinstance(harbour.fleet.by_name["node-0"].handle, Promise))
    other = harbour.pid("node-1")
    time.sleep(SILENT_S * 1.5)
    harbour.until(lambda: harbour.running("node-1"))
    assert other.alive()
    assert harbour.fleet.by_name["node-0"].where == "waits for a machine"
    set_desired_nodes(harbour.folder, 1)  # the one that would leave is the last
    harbour.until(lambda: set(harbour.fleet.by_name) == ALL - {"node-1"})


def test_a_start_without_room_says_what_is_missing(make):
    harbour = make(ground=LocalGround(SILENT_S, free=2), wait_s=0.5)
    with pytest.raises(
        ConfigError, match=r"could not be placed: engine-1, node-0, node-1.*CPU 0 of 100 free"
    ):
        harbour.fleet.open()


def test_a_machine_that_is_lost_before_the_start_is_replaced(make):
    ground = LocalGround(SILENT_S)
    harbour = make(ground=ground)
    harbour.fleet.open()
    ground.at("engine-0").lose()
    harbour.start_all()
    harbour.until(lambda: all(harbour.running(name) for name in ALL))
    assert harbour.places("engine-0") == 2


def test_a_log_that_cannot_be_written_is_fetched_when_it_can(make):
    harbour = make()
    harbour.folder.logs.write_text("in the way")
    harbour.start()
    harbour.until(lambda: harbour.running("trainer"))
    time.sleep(0.5)
    harbour.folder.logs.unlink()
    harbour.until(lambda: harbour.fleet.log_tail("trainer") == "up train-worker")


class Elsewhere(LocalGround):
    """Its places say what `says` makes of what they are."""

    def claim(self, name, need, sockets):
        machine = super().claim(name, need, sockets)
        machine.place.about = lambda *asked: self.says(name, QuietPlace.about(machine.place, *asked))
        return machine


def test_machines_with_another_release_or_without_the_folder_are_refused(make):
    ground = Elsewhere(SILENT_S)
    ground.says = lambda name, about: replace(about, release="HarnessGym 9") if name == "engine-1" else about
    with pytest.raises(ConfigError, match=f"engine-1 .* HarnessGym 9, the supervisor {release()}"):
        make(ground=ground).fleet.open()


def test_a_machine_that_does_not_see_the_runs_folder_is_refused(make):
    ground = Elsewhere(SILENT_S)
    asked = {}

    def says(name, about):
        asked[name] = about.missing
        return replace(about, missing=("/shared/run/config.json",)) if name == "engine-0" else about

    ground.says = says
    with pytest.raises(
        ConfigError, match=r"engine-0.*no /shared/run/config\.json.*must be on a disk that all machines share"
    ):
        make(ground=ground).fleet.open()
    assert asked["proxy"] == ()  # it was asked for the policy, which is there


def test_a_node_that_cannot_work_where_it_came_is_done_without(make):
    ground = Elsewhere(SILENT_S)
    ground.says = lambda name, about: replace(about, lacks="bwrap is missing") if name == "node-2" else about
    harbour = make(ground=ground).start()
    set_desired_nodes(harbour.folder, 3)
    harbour.until(lambda: any("bwrap is missing" in line for line in harbour.told))
    harbour.until(lambda: "node-2" not in harbour.fleet.by_name)
    assert desired_nodes(harbour.folder) == 3
    time.sleep(1.5)
    assert not harbour.fleet.reconcile()  # nor is it tried again at once
    assert harbour.running("node-0")
    assert isinstance(ground.at("node-2").place.about([], None), HostInfo)


def test_a_node_that_could_not_work_is_tried_again_later(make):
    ground, lacking = Elsewhere(SILENT_S), ["bwrap is missing"]
    ground.says = lambda name, about: replace(
        about, lacks=lacking[0] if name == "node-2" and lacking else None
    )
    harbour = make(ground=ground, wait_s=3.0).start()
    set_desired_nodes(harbour.folder, 3)
    harbour.until(lambda: any("bwrap is missing" in line for line in harbour.told))
    lacking.clear()
    harbour.until(lambda: harbour.running("node-2"))
    assert harbour.places("node-2") == 2


def test_a_run_whose_only_node_cannot_work_on_any_machine_left_ends(make):
    ground, lacking = Elsewhere(SILENT_S), []
    ground.says = lambda name, about: (
        replace(about, lacks="bwrap is missing") if lacking and name == "node-0" else about
    )
    harbour = make(ground=ground, nodes=1).start()
    harbour.until(lambda: harbour.running("node-0"))
    lacking.append(True)
    ground.at("node-0").lose()
    with pytest.raises(ConfigError, match=r"node-0 process cannot run on .*bwrap is missing"):
        harbour.until(lambda: False)
    assert desired_nodes(harbour.folder) == 1
    assert harbour.places("node-0") == 2


def test_a_place_that_does_not_answer_what_it_lacks_is_named(make):
    harbour = make(wait_s=3.0)
    harbour.fleet.open()
    harbour.ground.at("node-1").lose()
    with pytest.raises(ConfigError, match=r"place of node-1 \(.*\) has not answered for 3 s"):
        harbour.fleet.lacks("process")


def test_a_place_that_is_lost_when_it_is_asked_what_it_lacks_is_named(make):
    harbour = make()
    harbour.fleet.open()

    def lacks(*_):
        raise ConnectionError("The actor died.\nIts whole story.")

    harbour.ground.at("node-0").place.lacks = lacks
    with pytest.raises(
        ConfigError,
        match=r"place of node-0 \(.*\) was lost before the start \(ConnectionError: The actor died\.\)",
    ):
        harbour.fleet.lacks("process")


def test_a_trainer_of_several_processes_gets_a_place_that_holds_them_all(make):
    need = {"cpus": 1.5, "gpus": 1, "memory_mb": 100, "resources": {"fast_disk": 1}}
    berths = make(processes=3, trainer=need).start().fleet.by_name
    assert berths["trainer"].need == Need(cpus=4.5, gpus=3, memory_mb=300, resources={"fast_disk": 1})
    assert berths["proxy"].need == Need()


def test_the_trainers_place_is_given_back_when_it_is_through(make):
    harbour = make().start()
    harbour.until(lambda: harbour.running("trainer"))
    harbour.ground.at("trainer").tell(0)
    assert harbour.ended("trainer") == 0
    harbour.fleet.forget("trainer")
    harbour.until(lambda: not harbour.ground.at("trainer").place.folder.exists())
    assert "trainer" not in harbour.fleet.by_name


def test_a_cluster_that_is_out_of_reach_ends_the_run_with_what_there_is_to_say(make):
    harbour = make().start()
    harbour.until(lambda: all(harbour.running(name) for name in ALL))
    harbour.ground.problem = "The head is gone."
    with pytest.raises(HarnessGymError, match="The head is gone"):
        harbour.fleet.reconcile()
    harbour.fleet.close()
    assert harbour.ground.closed
