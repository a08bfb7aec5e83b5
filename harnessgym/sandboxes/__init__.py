"""Sandbox backends: `process` and `bubblewrap` run harnesses through a fork server, `docker` in containers."""
