"""The parsers of sampled answers, one file per model family. Names are in the registry."""
