"""Ray clusters on this machine, and kills of machines in them."""
