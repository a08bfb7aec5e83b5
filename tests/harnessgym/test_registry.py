import pytest

from harnessgym.errors import ConfigError
from harnessgym.registry import REGISTRY, load, names


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, known in REGISTRY.items() for name in known]
)
def test_every_name_loads(kind, name):
    assert load(kind, name) is not None


def test_a_full_path_needs_no_registration():
    assert load("task_set", "json:loads")("1") == 1


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ConfigError, match=r"no sandbox named 'bubblewarp'.*Did you mean 'bubblewrap'"):
        load("sandbox", "bubblewarp")
    with pytest.raises(ConfigError, match="Known: bubblewrap, docker, process"):
        load("sandbox", "zzz")


def test_a_missing_module_or_attribute_is_named():
    with pytest.raises(ConfigError, match="no module 'nowhere'"):
        load("harness", "nowhere:Thing")
    with pytest.raises(ConfigError, match="has no 'Thing'"):
        load("harness", "json:Thing")


def test_names_are_sorted():
    assert names("sandbox") == ["bubblewrap", "docker", "process"]
