"""Mounts this machine's package manager settings into a build, so that it reaches the same registries.

The image keeps none of them. The files are mounted under `/dev`, which is not part of an image. A script
there sets the environment variables that name them, so no address, password or folder ends up in a layer.
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
"""Where a build finds this machine's settings."""
_PIP = {
    "cert", "client-cert", "default-timeout", "extra-index-url", "find-links", "index-url", "no-index",
    "proxy", "retries",
    "timeout", "trusted-host",
}  # fmt: skip
"""Settings of pip that say where packages come from. Others are about this machine's own installations."""
_PATHS = {"cert", "client-cert", "extra-index-url", "find-links", "index-url"}
_NPM = re.compile(
    r"^(//|@[^/]+:registry|registry|(https?-|no)?proxy|noproxy|strict-ssl|ca\b|cert\b|key\b|_auth)"
)
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
_CA = (
    "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS", "PIP_CERT", "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
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
    """A folder of this machine with the settings for one build, and further mounts."""

    folder: Path
    mounts: dict[str, str] = field(default_factory=dict)
    """Paths on this machine and their paths inside. All are mounted read-only."""

    def share(self, path: str) -> str:
        """Mounts a file or folder of this machine and returns its path inside."""
        return self.mounts.setdefault(path, f"{INSIDE}-files{path}")

    def script(self, step: InstallStep) -> None:
        """Writes the script that runs a step: the machine's settings, the step's own, the command."""
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in step.env.items()]
        text = f". {INSIDE}/machine\n{''.join(lines)}exec {shlex.join(step.argv)}\n"
        (self.folder / "run").write_text(text)


def lend(folder: Path) -> Lent:
    """Writes this machine's settings to `folder`, for a build to mount at `INSIDE`.

    The folder must be empty, and private because it gets passwords.
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
    """The environment variables that name this machine's network proxies."""
    spelled = (spelling for name in _PROXIES for spelling in (name, name.upper()))
    return {name: value for name in spelled if (value := os.environ.get(name))}


def _authorities(lent: Lent) -> Mapping[str, str]:
    """Environment variables that name this machine's bundle of certificate authorities."""
    paths = ssl.get_default_verify_paths()
    bundle = next(
        (path for path in (paths.cafile, paths.openssl_cafile) if path and Path(path).is_file()), None
    )
    return dict.fromkeys(_CA, lent.share(str(Path(bundle).resolve()))) if bundle else {}


def _pip(lent: Lent) -> Mapping[str, str]:
    """Settings of pip as environment variables. Wheel and index folders on this machine are mounted."""
    files = ["/etc/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf", f"{sys.prefix}/pip.conf"]
    files += [os.environ["PIP_CONFIG_FILE"]] if "PIP_CONFIG_FILE" in os.environ else []
    parser = configparser.RawConfigParser()
    parser.read([Path(name).expanduser() for name in files])
    settings = {
        key: value
        for part in ("global", "install")
        if parser.has_section(part)
        for key, value in parser.items(part)
    }
    settings |= {
        name[4:].lower().replace("_", "-"): value
        for name, value in os.environ.items()
        if name.startswith("PIP_")
    }
    return {
        f"PIP_{key.upper().replace('-', '_')}": " ".join(_reach(word, lent) for word in value.split())
        if key in _PATHS
        else value
        for key, value in settings.items()
        if key in _PIP
    }


def _reach(word: str, lent: Lent) -> str:
    """Maps a path or file URL of this machine to its path inside; returns anything else as it is."""
    url = word.startswith("file:")
    path = Path(unquote(urlsplit(word).path) if url else word).expanduser()
    if not path.is_absolute() or not path.exists():
        return word
    # The pages of an index folder, named `simple` by convention, link to packages in folders beside it.
    shared = path.parent if url and path.name == "simple" else path
    inside = lent.share(str(shared)) + str(path)[len(str(shared)) :]
    return f"file://{inside}" if url else inside


def _npmrc() -> str:
    """Settings of npm that say where packages come from: the machine's, the user's, the environment's."""
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
    """Writes apt's sources, passwords and fetch settings for images of this machine's release.

    Returns the release.
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
    """Apt's settings for fetching packages."""
    dump = subprocess.run(
        ["apt-config", "dump", "Acquire"], capture_output=True, text=True, check=True
    ).stdout
    return [line for line in dump.splitlines() if "IndexTargets" not in line and not line.endswith(' "";')]
