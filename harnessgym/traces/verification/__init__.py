"""Recomputes from the stored rows what a store claims."""
