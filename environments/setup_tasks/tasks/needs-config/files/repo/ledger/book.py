"""The book."""

from decimal import Decimal

from ledger.settings import SETTINGS


def balance(amounts):
    return round(sum(map(Decimal, amounts), Decimal()), SETTINGS["precision"])


def shown(amount):
    return f"{amount} {SETTINGS['currency']}"
