"""Words and numbers."""

from miniparse.tokens import tokens


def parse(text):
    return list(tokens(text))
