"""Every key of `task.toml` has its type; sizes, hosts and paths keep their grammar; what is not known is
found again.
"""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from harnessgym.tasks.harbor_table import Environment, HarborTable, checked_host, mebibytes, unknown

ALL = """
schema_version = "1.4"
source = "registry"
multi_step_reward_strategy = "final"
artifacts = ["out.txt", { source = "/data/x", destination = "x", exclude = ["*.o"], service = "side" }]
[task]
name = "org/name"
version = "2"
authors = [{ name = "A", email = "a@example.org" }]
keywords = ["k"]
[metadata]
anything = { goes = [1, 2] }
[agent]
timeout_sec = 60
user = "agent"
network_mode = "allowlist"
allowed_hosts = ["example.org", "*.example.org", "203.0.113.7", "2001:db8::7", "203.0.113.0/24"]
[verifier]
timeout_sec = 30.5
env = { A = "${B:-c}" }
user = 1000
environment_mode = "separate"
network_mode = "no-network"
[verifier.environment]
docker_image = "x"
[[verifier.collect]]
command = "true"
service = "main"
timeout_sec = 5
user = 0
[environment]
build_timeout_sec = 10
docker_image = "y"
os = "linux"
cpus = 0.5
memory_mb = 256
storage_mb = 512
gpus = 0
gpu_types = ["h"]
tpu = { type = "v", topology = "2x2" }
env = { C = "d" }
skills_dir = "/skills"
workdir = "/app"
network_mode = "public"
[[environment.mcp_servers]]
name = "m"
transport = "http"
url = "http://mcp:8000"
headers = { Authorization = "${TOKEN}" }
[environment.healthcheck]
command = "true"
interval_sec = 1
timeout_sec = 2
start_period_sec = 3
start_interval_sec = 4
retries = 5
[solution]
env = { E = "f" }
[[steps]]
name = "one"
min_reward = { reward = 0.5 }
artifacts = ["y"]
[steps.agent]
timeout_sec = 3
[steps.verifier]
timeout_sec = 4
[steps.healthcheck]
command = "true"
"""


def read(text):
    return HarborTable.model_validate(tomllib.loads(text))


def test_every_key_of_the_schema_is_known():
    table = read(ALL)
    assert list(unknown(table)) == []
    assert table.artifacts[0].source == "out.txt"
    assert table.environment.healthcheck.retries == 5
    assert table.steps[0].min_reward == {"reward": 0.5}


def test_deprecated_keys_are_what_they_stand_for():
    table = read('version = "1.0"\n[environment]\nmemory = "2G"\nstorage = "512M"\nallow_internet = false\n')
    assert table.schema_version == "1.0"
    assert (table.environment.memory_mb, table.environment.storage_mb) == (2048, 512)
    assert table.environment.network_mode == "no-network"
    assert list(unknown(table)) == []
    assert (
        read('[environment]\nallow_internet = true\nmemory = "1G"\nmemory_mb = 5\n').environment.memory_mb
        == 5
    )


def test_what_is_not_known_is_found_at_every_depth():
    text = 'colour = 1\n[agent]\nmood = "x"\n[[verifier.collect]]\ncommand = "c"\nx = 3\n'
    text += '[[steps]]\nname = "a"\n[steps.verifier]\nlevel = 2\n'
    assert dict(unknown(read(text))) == {
        "colour": 1, "agent.mood": "x", "steps[0].verifier.level": 2, "verifier.collect[0].x": 3,
    }  # fmt: skip


@given(st.integers(1, 10_000), st.sampled_from("GMKgmk"))
def test_sizes_are_mebibytes_rounded_up(number, unit):
    expected = {"G": number * 1024, "M": number, "K": -(-number // 1024)}[unit.upper()]
    assert mebibytes(f"{number}{unit}") == expected
    assert Environment.model_validate({"memory": f"{number}{unit}"}).memory_mb == expected


@given(st.text(max_size=12))
def test_no_other_text_is_a_size(text):
    try:
        assert mebibytes(text) >= 1
    except ValueError:
        return
    assert text.strip()[-1].upper() in "GMK"


@pytest.mark.parametrize("size", ["", "G", "2", "2T", "-1G", "0M", "2GB", "1e3M", "two G"])
def test_malformed_sizes_are_refused(size):
    with pytest.raises(ValueError, match="no size"):
        mebibytes(size)


LABEL = st.from_regex(r"[a-z]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
HOST = st.lists(LABEL, min_size=2, max_size=4).map(".".join)


@given(HOST)
def test_hosts_and_all_below_them_are_allowed(host):
    assert checked_host(host) == host
    assert checked_host(f"*.{host}") == f"*.{host}"


@given(st.ip_addresses())
def test_addresses_are_allowed(address):
    assert checked_host(str(address)) == str(address)


@given(
    HOST, st.sampled_from(["http://{}", "{}/path", "{}:443", "{}.*", "a*.{}", "[{}]", "", "{} ", "user@{}"])
)
def test_urls_ports_paths_and_other_patterns_are_not(host, form):
    with pytest.raises(ValueError, match="host"):
        checked_host(form.format(host))


@pytest.mark.parametrize(
    "host", ["203.0.113.7/24", "2001:db8::1/32", "203.0.113.0/33", "[2001:db8::7]:80", "203.0.113.7:80"]
)
def test_blocks_are_strict_and_addresses_have_no_port(host):
    with pytest.raises(ValueError, match="host"):
        checked_host(host)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('artifacts = ["../x"]', "artifacts"),
        ('artifacts = [{ source = "x", destination = "/y" }]', "destination"),
        ('artifacts = ["logs/manifest.json"]', "manifest.json"),
        ('artifacts = [{ source = "x", service = "db" }]', "absolute"),
        ("[environment]\nworkdir = 'app'", "workdir"),
        ('[environment]\nos = "beos"', "os"),
        ('[environment]\nnetwork_mode = "some"', "network_mode"),
        ("[environment]\nallow_internet = 1", "allow_internet"),
        ("[environment]\ncpus = 0", "cpus"),
        ("[agent]\ntimeout_sec = -1", "timeout_sec"),
        ('[agent]\nallowed_hosts = ["http://x"]', "allowed_hosts"),
        ("[verifier]\nenv = { A = 1 }", "env"),
        ('[verifier]\nenvironment_mode = "own"', "environment_mode"),
        ("[[verifier.collect]]\nservice = 'main'", "command"),
        ('[[steps]]\nname = "../x"', "name"),
        ('[[steps]]\nname = "x"\nmin_reward = inf', "min_reward"),
        ('[[steps]]\nname = "x"\n[[steps]]\nname = "x"', "two steps"),
        ('multi_step_reward_strategy = "best"', "multi_step_reward_strategy"),
    ],
)
def test_malformed_values_are_refused_by_key(text, named):
    with pytest.raises(ValidationError, match=named):
        read(text)
