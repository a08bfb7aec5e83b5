"""The proxy's command line."""

import shlex

import proxies.app
from harnessgym.config import load_config
from proxies.app import ProxySettings


def test_the_example_is_a_whole_command_line() -> None:
    (line,) = (line for line in (proxies.app.__doc__ or "").splitlines() if "harnessgym proxy" in line)
    settings = load_config(ProxySettings, None, shlex.split(line)[2:])
    assert (settings.run_id, settings.control_key, settings.port, settings.control_port) == ("RUN", "KEY", 8100, 8101)
