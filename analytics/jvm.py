"""Finds a Java for Spark before the first session."""

from __future__ import annotations


def find() -> None:
    """Leave the process with a Java that Spark can use, or raise `UsageError`."""
