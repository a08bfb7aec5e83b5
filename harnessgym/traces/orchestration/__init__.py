"""The orchestration of a session's agents, derived from the traffic that passes the proxy."""
