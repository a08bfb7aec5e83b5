"""What a build is lent of this machine: how its package managers reach their registries. An image never keeps
any of it.

Everything is mounted under `/dev`, which is no part of an image, and named by environment variables that a
script there sets, so neither the files nor the addresses, passwords and folders in them are left in a layer.
"""

import configparser
import functools
import os
import platform
import re
import shlex
import ssl
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from harnessgym.errors import ImageError
from harnessgym.sandbox import InstallStep
from harnessgym.sandboxes.images.bootstrap import repositories

INSIDE = "/dev/harnessgym"
"""Where a build finds what it is lent."""
_PIP = {
    "cert", "client-cert", "default-timeout", "extra-index-url", "find-links", "index-url", "no-index", "proxy", "retries",
    "timeout", "trusted-host",
}  # fmt: skip
"""Settings of pip that say how packages are reached; others say how this machine wants its own installed."""
_PATHS = {"cert", "client-cert", "extra-index-url", "find-links", "index-url"}
_NPM = re.compile(
    r"^(//|@[^/]+:registry|registry|(https?-|no)?proxy|noproxy|strict-ssl|ca\b|cert\b|key\b|_auth)"
)
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
_CA = (
    "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS", "PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE",
    "npm_config_cafile",
)  # fmt: skip
_QUIET = {
    "DEBIAN_FRONTEND": "noninteractive",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_CACHE_DIR": "1",
    "PIP_ROOT_USER_ACTION": "ignore",
    "npm_config_audit": "false",
    "npm_config_cache": f"{INSIDE}/scratch/npm",
    "npm_config_fund": "false",
    "npm_config_omit_lockfile_registry_resolved": "true",
    "npm_config_update_notifier": "false",
}
_PREAMBLE = """\
umask 022
if [ -f /etc/os-release ] && [ "$(. /etc/os-release; echo "$VERSION_CODENAME")" = {release} ]; then
    export APT_CONFIG={inside}/apt.conf
fi
"""


@dataclass(slots=True)
class Lent:
    """A folder of this machine, filled for one build, and what is mounted beside it."""

    folder: Path
    mounts: dict[str, str] = field(default_factory=dict)
    """Path on this machine to path inside, all of them read-only."""

    def share(self, path: str) -> str:
        """Where a file or folder of this machine is found inside."""
        return self.mounts.setdefault(path, f"{INSIDE}-files{path}")

    def script(self, step: InstallStep) -> None:
        """What runs a step: the machine's settings, the step's own, the command."""
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in step.env.items()]
        text = f". {INSIDE}/machine\n{''.join(lines)}exec {shlex.join(step.argv)}\n"
        (self.folder / "run").write_text(text)


def lend(folder: Path) -> Lent:
    """Writes this machine's settings into `folder`, which must be private and empty, for builds to mount
    at `INSIDE`.
    """
    lent = Lent(folder)
    env = {**_QUIET, **_authorities(lent), **_pip(lent), **proxies()}
    (folder / "npmrc").write_text(_npmrc())
    env["npm_config_userconfig"] = f"{INSIDE}/npmrc"
    env["TMPDIR"] = f"{INSIDE}/scratch/tmp"
    (folder / "scratch" / "tmp").mkdir(parents=True, mode=0o777)
    release = _apt(folder)
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items())
    (folder / "machine").write_text(_PREAMBLE.format(release=shlex.quote(release), inside=INSIDE) + exports)
    return lent


def proxies() -> dict[str, str]:
    """The environment variables that say through which proxies this machine reaches the network."""
    spelled = (spelling for name in _PROXIES for spelling in (name, name.upper()))
    return {name: value for name in spelled if (value := os.environ.get(name))}


def _authorities(lent: Lent) -> Mapping[str, str]:
    """The certificate authorities that this machine trusts."""
    paths = ssl.get_default_verify_paths()
    found = next(
        (path for path in (paths.cafile, paths.openssl_cafile) if path and Path(path).is_file()), None
    )
    return dict.fromkeys(_CA, lent.share(str(Path(found).resolve()))) if found else {}


def _pip(lent: Lent) -> Mapping[str, str]:
    """Settings of pip as its environment variables; folders of wheels and indexes on this machine are
    shared.
    """
    files = ["/etc/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf", f"{sys.prefix}/pip.conf"]
    files += [os.environ["PIP_CONFIG_FILE"]] if "PIP_CONFIG_FILE" in os.environ else []
    parser = configparser.RawConfigParser()
    parser.read([Path(name).expanduser() for name in files])
    said = {
        key: value
        for part in ("global", "install")
        if parser.has_section(part)
        for key, value in parser.items(part)
    }
    said |= {
        name[4:].lower().replace("_", "-"): value
        for name, value in os.environ.items()
        if name.startswith("PIP_")
    }
    return {
        f"PIP_{key.upper().replace('-', '_')}": " ".join(_reach(word, lent) for word in value.split())
        if key in _PATHS
        else value
        for key, value in said.items()
        if key in _PIP
    }


def _reach(word: str, lent: Lent) -> str:
    """A setting that may be a path or a file URL of this machine, as it is reached from inside."""
    url = word.startswith("file:")
    path = Path(unquote(urlsplit(word).path) if url else word).expanduser()
    if not path.is_absolute() or not path.exists():
        return word
    # The pages of an index folder, named `simple` by convention, link to packages in folders beside it.
    shared = path.parent if url and path.name == "simple" else path
    inside = lent.share(str(shared)) + str(path)[len(str(shared)) :]
    return f"file://{inside}" if url else inside


def _npmrc() -> str:
    """Settings of npm that say how packages are reached: the machine's, its user's and the environment's."""
    lines = []
    for path in (Path("/etc/npmrc"), Path.home() / ".npmrc"):
        if path.is_file():
            lines += [line.strip() for line in path.read_text().splitlines() if _NPM.match(line.strip())]
    for name, value in os.environ.items():
        key = name.lower().removeprefix("npm_config_").replace("_", "-")
        if name.lower().startswith("npm_config_") and _NPM.match(key):
            lines.append(f"{key}={value}")
    return "".join(f"{line}\n" for line in lines)


def _apt(folder: Path) -> str:
    """Sources, passwords and fetch settings of apt, for images of this machine's own release. Returns the
    release.
    """
    try:
        sources = repositories()
    except ImageError:
        return "no such release"
    settings = list(_fetching())
    lines = [f"deb {source.uri} {source.release} {' '.join(source.components)}\n" for source in sources]
    (folder / "sources.list").write_text("".join(lines))
    settings += [
        f'Dir::Etc::sourcelist "{INSIDE}/sources.list";',
        'Dir::Etc::sourceparts "-";',
        'APT::Sandbox::User "root";',
    ]
    passwords = [*sorted(Path("/etc/apt/auth.conf.d").glob("*.conf")), Path("/etc/apt/auth.conf")]
    (folder / "auth.conf").write_text(
        "".join(path.read_text() + "\n" for path in passwords if path.is_file())
    )
    settings.append(f'Dir::Etc::netrc "{INSIDE}/auth.conf";')
    (folder / "apt.conf").write_text("".join(f"{line}\n" for line in settings))
    return platform.freedesktop_os_release()["VERSION_CODENAME"]


@functools.cache
def _fetching() -> list[str]:
    """Settings of apt that say how packages are fetched."""
    dump = subprocess.run(
        ["apt-config", "dump", "Acquire"], capture_output=True, text=True, check=True
    ).stdout
    return [line for line in dump.splitlines() if "IndexTargets" not in line and not line.endswith(' "";')]
