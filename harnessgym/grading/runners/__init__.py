"""Programs that a grading sandbox runs. The node passes them to the interpreter as text. They import only
the standard library.
"""
