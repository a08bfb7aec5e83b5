"""Code and reasoning: task sets made of what installed packages carry. None of those packages is imported
into this process.
"""
