"""pottery's ``Redlock`` on one server, made as the other contenders are."""

from __future__ import annotations

import redis
from pottery import Redlock


def one_master(client: redis.Redis, name: str, *, auto_release_time: float) -> Redlock:
    """Return a lock whose only master is this server."""
    return Redlock(key=name, masters={client}, auto_release_time=auto_release_time)
