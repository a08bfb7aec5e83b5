"""Derives the orchestration of a session's agents from the traffic that passes the proxy."""
