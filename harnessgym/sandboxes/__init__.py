"""Sandbox backends: `process` and `bubblewrap` use a fork server, `docker` starts containers."""
