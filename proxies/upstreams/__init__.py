"""The inference engines the proxy can speak to, one file per protocol. Names are in the registry."""
