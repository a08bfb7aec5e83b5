"""Sandbox backends, one file each: `process` and `bubblewrap`. Both run harnesses through a fork server."""
