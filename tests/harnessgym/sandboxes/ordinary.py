"""What any program may expect of a sandbox that confines it."""

ORDINARY = """
import getpass, os, pty, socket, subprocess, tempfile, multiprocessing, threading
assert getpass.getuser() == "agent" and os.path.expanduser("~") == "/home/agent" and os.getcwd() == "/workspace"
assert socket.gethostbyname("localhost") == "127.0.0.1"
master, slave = pty.openpty()
os.write(slave, b"x")
tempfile.TemporaryFile().write(b"x")
assert subprocess.run(["python3", "-c", "print(1)"], capture_output=True, text=True).stdout == "1\\n"
assert open("/dev/stdin").read() == "in"
with multiprocessing.Pool(2) as pool:
    assert pool.map(abs, [-1, -2]) == [1, 2]
open("/proc/self/fd/1", "w").write("fine")
"""
"""Prints `fine`; reads `in` from standard input."""
