"""The roster as text."""

from tablefmt import render

from roster.people import Person


def report(people: list[Person]) -> str:
    return render([[person.name, person.shift] for person in people])
