from __future__ import annotations

import pytest

# For its effect: examples are given all the time they need.
import tests.unit.eod.hypothesis_settings  # noqa: F401 (what it does is done when it is imported)
from tests.unit.broker.world import World


@pytest.fixture
def world() -> World:
    """A topic, and nothing else."""
    world = World()
    world.create_topic()
    world.turn()
    return world


@pytest.fixture
def eod(world: World) -> World:
    """A topic and a subscription with exactly-once delivery."""
    world.create_subscription(exactly_once=True)
    world.turn()
    return world


@pytest.fixture
def std(world: World) -> World:
    """A topic and a subscription without exactly-once delivery."""
    world.create_subscription(exactly_once=False)
    world.turn()
    return world
