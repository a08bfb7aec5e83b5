"""Databases that a trace store can use, one file each."""
