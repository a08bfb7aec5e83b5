"""Programs that a grading sandbox runs. They are handed to its interpreter as text, and import only its
standard library.
"""
