from roster.people import Person
from roster.report import report


def test_one_line():
    assert report([Person("Ada", "early")]) == "Ada  early"


def test_no_people():
    assert report([]) == ""
