"""The inference engines that the proxy supports, one file per protocol. The registry has their names."""
