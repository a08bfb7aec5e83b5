"""Parsers of sampled answers, one file per model family. The registry has their names."""
