"""Money, counted."""
