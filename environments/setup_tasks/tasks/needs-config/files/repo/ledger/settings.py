"""What was set."""

import json
import os
import re


def load():
    path = os.environ.get("LEDGER_SETTINGS", "")
    if not os.path.isabs(path):
        raise RuntimeError("LEDGER_SETTINGS names no absolute path")
    with open(path, encoding="utf-8") as file:
        found = json.load(file)
    if not re.fullmatch("[A-Z]{3}", str(found.get("currency"))):
        raise RuntimeError("currency must be three capital letters")
    if found.get("precision") not in range(5):
        raise RuntimeError("precision must be 0 to 4")
    if not found.get("accounts"):
        raise RuntimeError("there are no accounts")
    return found


SETTINGS = load()
