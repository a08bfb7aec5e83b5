from pathlib import Path

HELLO = Path("/app/hello.txt")


def test_the_file_is_there():
    assert HELLO.exists()


def test_the_file_says_hello():
    assert HELLO.read_text().strip() == "Hello, world!"
