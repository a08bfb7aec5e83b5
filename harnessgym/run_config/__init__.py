"""The configuration of a run, one module for each larger section."""
