"""Reads ingredients."""

import miniparse


def amounts(text):
    return [value for kind, value in miniparse.parse(text) if kind == "number"]


def words(text):
    return [value for kind, value in miniparse.parse(text) if kind == "word"]
