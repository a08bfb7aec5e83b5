"""Outside engines as the weight agent sees them, one file each."""
