"""Numbers for clients, so that a journal record can name one in four bytes."""

from __future__ import annotations

from pubsubd.model import limits


class Clients:
    """Interned client names. A name that was forgotten gets a new number; a number is never used twice."""

    def __init__(self, last_id: int) -> None:
        self.last_id = last_id
        self._ids: dict[str, int] = {}

    def intern(self, name: str) -> tuple[int, bool]:
        """The number of `name`, and whether it is new."""
        client_id = self._ids.get(name)
        if client_id is not None:
            return client_id, False
        if len(self._ids) >= limits.CLIENTS_MAX:
            del self._ids[next(iter(self._ids))]
        self.last_id += 1
        self._ids[name] = self.last_id
        return self.last_id, True
