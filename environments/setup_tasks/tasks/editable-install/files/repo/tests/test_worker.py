from queueservice.worker import work


def test_retries():
    tries = []

    def job():
        tries.append(1)
        if len(tries) < 3:
            raise OSError
        return "done"

    assert work(job, lambda seconds: None) == "done"


def test_gives_up():
    def job():
        raise OSError

    assert work(job, lambda seconds: None) is None
