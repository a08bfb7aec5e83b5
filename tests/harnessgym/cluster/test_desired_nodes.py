"""The number of nodes that a cluster run should have."""

import pytest

from harnessgym.cluster.backend import desired_nodes, set_desired_nodes
from harnessgym.errors import ConfigError
from harnessgym.run_config.cluster import Need
from harnessgym.run_folder import RunFolder


def test_the_last_number_set_counts(tmp_path):
    folder = RunFolder(tmp_path)
    for number in (3, 1):
        set_desired_nodes(folder, number)
        assert desired_nodes(folder) == number


@pytest.mark.parametrize("number", [0, -1])
def test_a_run_keeps_a_node(tmp_path, number):
    with pytest.raises(ConfigError, match="at least one must stay"):
        set_desired_nodes(RunFolder(tmp_path), number)
    assert list(tmp_path.iterdir()) == []


def test_the_need_of_several_processes_multiplies_amounts_and_not_labels():
    need = Need(cpus=2, gpus=0.5, memory_mb=100, resources={"here": 1.0}).times(4)
    assert (need.cpus, need.gpus, need.memory_mb, need.resources) == (8, 2.0, 400, {"here": 1.0})
