"""Does jobs, again if need be."""

from queuecore import LIMIT
from queuecore.backoff import delay_s


def work(job, sleep):
    for attempt in range(LIMIT):
        try:
            return job()
        except OSError:
            sleep(delay_s(attempt))
    return None
