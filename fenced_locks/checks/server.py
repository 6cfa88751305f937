"""What one Redis server answered, for the concerns to look at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..issuers import AnyIssuer, RedisIssuer
from .asking import Line, Reading, connection_like, line_to, read_clock, read_info

SECONDS = 2.0


@dataclass
class Server:
    """
    The server of the locks.

    Attributes:
        alias: The cache alias.
        client: Its client.
        issuer: Who mints the tokens.
        line: For further questions.
        socket_timeout: That of the client, in seconds; None for without.
        info: What ``INFO`` said; empty if it was refused.
        clock: What its clock said; None if that was refused.
        unseen: What could not be looked at, and why.
    """

    alias: str
    client: Any
    issuer: AnyIssuer
    line: Line
    socket_timeout: float | None
    info: dict[str, str] = field(default_factory=dict)
    clock: Reading | None = None
    unseen: dict[str, str] = field(default_factory=dict)

    @property
    def issuer_name(self) -> str:
        return getattr(self.issuer, "name", type(self.issuer).__name__)

    @property
    def needs_its_counters(self) -> bool:
        """Whether a counter that Redis loses breaks the promise that tokens grow."""
        return isinstance(self.issuer, RedisIssuer) and not self.issuer.starts_at_clock


@contextmanager
def asked(alias: str, client: Any, issuer: AnyIssuer) -> Iterator[Server]:
    """
    Yield the server of this client, with what it said.

    Raises:
        CannotAsk: It cannot be asked, or not any more.
    """
    connection = connection_like(client)
    limit = connection.socket_timeout
    with line_to(connection, SECONDS) as line:
        server = Server(alias, client, issuer, line, limit)
        info, clock = read_info(line), read_clock(line)
        if isinstance(info, Exception):
            server.unseen["maxmemory-policy, persistence, version and replicas"] = str(info)
        else:
            server.info = info
        if isinstance(clock, Exception):
            server.unseen["clock and latency"] = str(clock)
        else:
            server.clock = clock
        yield server
