"""The proxy's command line."""

import shlex

import pytest

import proxies.app
from harnessgym.config import load_config
from harnessgym.errors import ConfigError
from proxies.app import ProxySettings


def test_the_example_is_a_whole_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its key is not among the words that every user of the machine can read."""
    (line,) = (line for line in (proxies.app.__doc__ or "").splitlines() if "harnessgym proxy" in line)
    given, *words = shlex.split(line)
    monkeypatch.setenv(*given.split("="))
    settings = load_config(ProxySettings, None, words[2:])
    assert (settings.run_id, settings.control_key, settings.port, settings.control_port) == (
        "RUN",
        "KEY",
        8100,
        8101,
    )


def test_a_proxy_without_a_key_says_where_to_put_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HARNESSGYM_CONTROL_KEY", raising=False)
    for words in ([], ["--control_key", ""]):
        with pytest.raises(
            ConfigError,
            match=r"there is no key: set HARNESSGYM_CONTROL_KEY, or give control_key in the file of --config",
        ):
            load_config(
                ProxySettings, None, ["--store", "sqlite:///x", "--run_id", "r", "--policy", "p", *words]
            )
