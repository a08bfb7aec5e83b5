"""Finding books."""

from collections import defaultdict


def by_author(books):
    found = defaultdict(list)
    for author, title in books:
        found[author].append(title)
    return dict(found)
