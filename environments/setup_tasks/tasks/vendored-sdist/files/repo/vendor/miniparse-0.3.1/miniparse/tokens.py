"""Splits a text."""

import re


def tokens(text):
    for word in re.findall(r"[a-z]+|[0-9]+", text):
        yield ("number", int(word)) if word.isdigit() else ("word", word)
