import json
import socket
import tempfile
from pathlib import Path

from harnessgym.supervisor.sockets import Sockets


def test_sockets_listen_and_go_with_their_folder(tmp_path):
    record = tmp_path / "sockets.json"
    sockets = Sockets(2, record)
    assert Path(json.loads(record.read_text())) == sockets.folder
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(sockets.proxy_folder / "proxy.sock"))
    assert len({engine.getsockname() for engine in sockets.engines}) == 2
    assert (sockets.folder / "control.sock").stat().st_mode & 0o077 == 0
    sockets.close()
    assert not sockets.folder.exists()
    assert not record.exists()


def test_the_folder_of_a_killed_supervisor_is_removed_by_the_next(tmp_path):
    record = tmp_path / "sockets.json"
    dead = Sockets(1, record)
    new = Sockets(1, record)
    assert not dead.folder.exists()
    assert new.folder.is_dir()
    new.close()
    dead.close()


def test_a_folder_that_was_never_filled_is_removed_too(tmp_path):
    record = tmp_path / "sockets.json"
    dead = Sockets(0, record)
    dead.close()
    dead.folder.mkdir()
    record.write_text(json.dumps(str(dead.folder)))
    Sockets(0, record).close()
    assert not dead.folder.exists()


def test_nothing_else_is_ever_removed(tmp_path):
    precious = tmp_path / "precious" / "proxy"
    precious.mkdir(parents=True)
    other = Path(tempfile.mkdtemp(prefix="harnessgym-"))
    for entry in (str(precious.parent), str(other), 7, "/", None):
        record = tmp_path / "sockets.json"
        record.write_text(json.dumps(entry))
        Sockets(1, record).close()
    assert precious.is_dir()
    assert other.is_dir()
    other.rmdir()
