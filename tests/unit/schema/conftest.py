from __future__ import annotations

# For its effect: examples are given all the time they need.
import tests.unit.eod.hypothesis_settings  # noqa: F401 (what it does is done when it is imported)
