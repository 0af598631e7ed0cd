"""How long hypothesis drives a state machine: a little each time, and for long when asked."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings

_BASE = settings(
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    # Without the phase that explains a failure by many more runs: histories are long enough as they are.
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
QUICK = settings(_BASE, max_examples=30, stateful_step_count=40)
THOROUGH = settings(_BASE, max_examples=400, stateful_step_count=100)
