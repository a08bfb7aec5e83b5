"""What it is worth."""

from inventory.stock import Stock


def worth(stock: Stock, prices, discount=0.0):
    return sum(count * prices[name] for name, count in stock.counts.items()) * (1 - discount)
