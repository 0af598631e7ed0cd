"""How long hypothesis drives a state machine: a little each time, and for long when asked."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

QUICK = settings(
    max_examples=30,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=_SLOW_IS_FINE,
    print_blob=True,
)
THOROUGH = settings(
    max_examples=400,
    stateful_step_count=100,
    deadline=None,
    suppress_health_check=_SLOW_IS_FINE,
    print_blob=True,
)
