"""Code and reasoning: task sets from installed packages, none of which is imported into this process."""
