import os

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # it warns on import, and warnings are errors
