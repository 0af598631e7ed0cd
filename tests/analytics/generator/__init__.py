"""Synthetic journals: `Builder` for a dozen events by hand, `write` for millions by chance."""
