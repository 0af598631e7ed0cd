from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.roll.writing import Writing


@pytest.fixture
async def writing(tmp_path: Path) -> AsyncIterator[Writing]:
    """A database with an empty journal, open as the server has it."""
    async with Writing.open(tmp_path / "data") as opened:
        yield opened
