"""Container images without a registry: recipes, layers, and what keeps many builders from doing the same
work twice.
"""
