"""The inference engines the proxy can speak to, one file per protocol."""
