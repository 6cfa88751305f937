"""A sentinel that watches one server."""

from __future__ import annotations

import contextlib

import redis
import servers


class Sentinel(servers.RedisServer):
    """One sentinel, which decides alone, for a master named "orders"."""

    def __init__(self, master: servers.RedisServer, password: str = "") -> None:
        self._master = master
        self._password = password
        super().__init__()

    def start(self) -> None:
        conf = self.directory / "sentinel.conf"
        conf.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self.directory}\n"
            f"sentinel monitor orders 127.0.0.1 {self._master.port} 1\n"
            + (f"sentinel auth-pass orders {self._password}\n" if self._password else "")
            + "sentinel down-after-milliseconds orders 60000\nsentinel failover-timeout orders 2000\n"
        )
        self.launch([self._binary, str(conf), "--sentinel"])
        self.wait_until(self._answers)

    def _answers(self) -> bool:
        with redis.Redis(port=self.port, socket_timeout=1) as probe, contextlib.suppress(redis.exceptions.RedisError):
            return bool(probe.ping())
        return False
