"""`--seal` against a real server: all that is committed is sealed, and what was open then is beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the server seals only with pubsubd[analytics]: no pyarrow")

from pyarrow import parquet

from analytics.errors import UsageError
from analytics.journal import backlogs_of, segments_of
from analytics.seal import seal
from tests.clients.world import World
from tests.support.server import ServerProcess


def test_seal_brings_the_journal_up_to_the_last_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = tmp_path / "data" / "journal"
    with ServerProcess(tmp_path / "data", "--seal-seconds", "0", admin=True) as server:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", server.address)
        world = World()
        try:
            topic = world.topic()
            world.subscription(topic)
            before = seal(server.admin_address)
            world.publisher.publish(topic, b"one").result(30)
            after = seal(server.admin_address)
        finally:
            world.close()

        assert after.last_seq > before.last_seq
        segments = segments_of(str(journal))
        assert (segments[0].first_seq, segments[-1].last_seq) == (1, after.last_seq)
        newest = backlogs_of(str(journal))[-1]
        assert (newest.seq, newest.path) == (after.last_seq, after.backlog)
        assert parquet.read_table(newest.path, columns=["sub_id", "message_id"]).num_rows == 1
        with pytest.raises(UsageError, match="it is not the port of pubsubd's admin service"):
            seal(server.address)
