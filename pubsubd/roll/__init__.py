"""Seals the tail of the journal into Parquet segments: a process of its own that runs once and ends."""
