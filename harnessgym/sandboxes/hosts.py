"""Lists of hosts that a setup phase may reach: their grammar and what they allow.

An entry is one of

    packages.example    this host, at ports 80 and 443
    *.example.org       every host below it, at any depth, not itself
    203.0.113.7         an address; also 2001:db8::7 or [2001:db8::7]
    203.0.113.0/24      a block of addresses
    mirror.lan:8080     any of the first three with one port instead of the two

Only names on the list are looked up, so that name servers do not learn of others. An address behind a name is
allowed only if it is public or on the list itself. So a name cannot lead to this machine, its neighbours, or
the metadata service of a cloud.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from harnessgym.errors import TaskError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

PORTS = frozenset({80, 443})
"""Ports of an entry that names none."""
_NAME = re.compile(r"(\*\.)?(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]{0,62})(\.[a-z0-9_][a-z0-9_-]{0,62})*")
_NAT64 = IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class HostEntry:
    """One entry: a name (with `*.` in front: all names below it) or a block of addresses, and its ports."""

    target: str | Network
    ports: frozenset[int] = PORTS

    def names(self, host: str) -> bool:
        """Whether it covers a host name, at any port."""
        if not isinstance(self.target, str):
            return False
        return host.endswith(self.target[1:]) if self.target.startswith("*.") else host == self.target

    def holds(self, address: Address) -> bool:
        """Whether it covers an address, at any port."""
        return not isinstance(self.target, str) and address in self.target


class HostList:
    """The entries of one list. Raises TaskError that says what is wrong with the first bad entry."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self.entries = tuple(parse(text) for text in hosts)

    def names(self, host: str, port: int) -> bool:
        """Whether a name may be looked up and reached at a port."""
        return any(entry.names(host) and port in entry.ports for entry in self.entries)

    def holds(self, address: Address, port: int) -> bool:
        """Whether an address is itself on the list."""
        plain = unwrapped(address)
        return any(entry.holds(plain) and port in entry.ports for entry in self.entries)

    def admits(self, address: Address, port: int) -> bool:
        """Whether a name on the list may resolve to an address."""
        return is_public(address) or self.holds(address, port)


def parse(text: str) -> HostEntry:
    """Parses one entry. Raises TaskError."""
    problem = _problem(text)
    if problem is not None:
        raise TaskError(f"{text!r} is no host that a setup phase can be allowed: {problem}.")
    block = _network(text)
    if block is not None:
        return HostEntry(block)
    host, port = split(text.lower())
    ports = PORTS if port is None else frozenset({port})
    block = _network(host)
    return HostEntry(host.removesuffix(".") if block is None else block, ports)


def split(text: str) -> tuple[str, int | None]:
    """Splits `host:port` or `[address]:port`; a missing port is None. Raises ValueError for a bad port."""
    bracketed = re.fullmatch(r"\[([^\[\]]*)\](?::([0-9]{1,5}))?", text)
    if bracketed is not None:
        host, port = bracketed[1], bracketed[2]
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    else:
        host, port = text, None
    if port is None:
        return host, None
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{port!r} is no port")
    return host, int(port)


def literal(host: str) -> Address | None:
    """Parses an IP address; None if `host` is not one."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def unwrapped(address: Address) -> Address:
    """Returns the IPv4 address inside an IPv6 address (mapped, 6to4, NAT64), else the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or address


def is_public(address: Address) -> bool:
    """Whether an address is public: not loopback, link-local, private, multicast or reserved."""
    plain = unwrapped(address)
    return plain.is_global and not plain.is_multicast and not plain.is_reserved


def _network(text: str) -> Network | None:
    try:
        return ip_network(text.removeprefix("[").removesuffix("]") if text.startswith("[") else text)
    except ValueError:
        return None


def _problem(text: str) -> str | None:
    """Returns what is wrong with an entry, or None."""
    if "://" in text:
        return f"it has a scheme; write {text.partition('://')[2].partition('/')[0]!r}"
    if _network(text) is not None:
        return None
    host, slash, rest = text.partition("/")
    if slash:
        return f"it has a path; write {host!r}" if literal(host) is None else _block_problem(host, rest)
    try:
        name, _ = split(text.lower())
    except ValueError as error:
        return f"{error} (1 to 65535)"
    return None if _network(name) is not None else _name_problem(name.removesuffix("."))


def _name_problem(name: str) -> str | None:
    if "*" in name.removeprefix("*."):
        return "a `*` can only stand in front, as in `*.example.org`"
    if _NAME.fullmatch(name) and not name.rpartition(".")[2].isdigit():
        return None
    return "write a host name, `*.name`, an address or a CIDR block"


def _block_problem(host: str, rest: str) -> str:
    try:
        inside = ip_network(f"{host}/{rest}", strict=False)
    except ValueError:
        return f"{rest!r} is no prefix length"
    return f"the address has bits beyond its prefix; write '{inside}'"
