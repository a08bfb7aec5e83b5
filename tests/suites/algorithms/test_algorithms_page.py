"""docs/algorithms.md says what the code says, and every algorithm is as near to its reference as the page
claims.
"""

from tests.suites.algorithms.report import PAGE, below, measures, page
from trainers.algorithms import algorithms


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == page(), "run `python -m tests.suites.algorithms.report`"


def test_everything_that_is_measured_is_an_algorithm_and_near_its_reference():
    measured = measures()
    assert set(measured) == {(item.kind, item.name) for item in algorithms()}
    assert {key: difference for key, measure in measured.items() if (difference := measure()) > 1e-5} == {}


def test_a_difference_is_said_as_the_power_of_ten_above_it():
    assert [below(value) for value in (0.0, 3e-13, 2e-8, 0.5, 20.0)] == [
        "1e-12",
        "1e-12",
        "1e-7",
        "1e0",
        "1e2",
    ]
