"""How hypothesis works here: without hurry, a little each time, and for long when asked."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings

# On a machine that is busy with something else an example may take any time.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

_MACHINES = settings(
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    # Without the phase that explains a failure by many more runs: histories are long enough as they are.
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
QUICK = settings(_MACHINES, max_examples=30, stateful_step_count=40)
THOROUGH = settings(_MACHINES, max_examples=400, stateful_step_count=100)
