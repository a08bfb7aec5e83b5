"""Black-box agents, one file each."""
