"""Whether the clocks of the server, of its replicas and of this machine agree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from django.core.checks import CheckMessage
from django.core.checks import Warning as CheckWarning

from .asking import CannotAsk, Reading, connection_to, line_to, read_clock
from .server import Server

_MOST_SECONDS = 1.0
# A replica may be where only its primary reaches it, so that none is waited for much.
_REPLICA_SECONDS = 0.5
_MOST_REPLICAS = 5


def clocks_apart(server: Server) -> Iterable[CheckMessage]:
    """The clocks must agree to a second (fenced_locks.W025)."""
    if not server.clock:
        return
    name = f"the Redis server of cache alias {server.alias!r}"
    if _is_apart(server.clock.ahead, server.clock.doubt):
        yield _warning(name, server.clock.ahead, "this machine's", "Times in logs and in fence_status do not compare.")
    for address, reading in _replicas(server):
        ahead, doubt = reading.ahead - server.clock.ahead, reading.doubt + server.clock.doubt
        if _is_apart(ahead, doubt):
            consequence = "Once it is promoted, fence tokens of the issuer 'clock' may be smaller than those before."
            yield _warning(f"replica {address} of {name}", ahead, "the primary's", consequence if ahead < 0 else "")


def _is_apart(ahead: float, doubt: float) -> bool:
    return abs(ahead) - doubt > _MOST_SECONDS


def _warning(what: str, ahead: float, other: str, consequence: str) -> CheckMessage:
    way = "ahead of" if ahead > 0 else "behind"
    return CheckWarning(
        f"The clock of {what} is {abs(ahead):.1f} s {way} {other}. {consequence}".rstrip(),
        hint="Keep the clocks of all machines in step, with chrony or another NTP client.",
        id="fenced_locks.W025",
    )


def _replicas(server: Server) -> Iterator[tuple[str, Reading]]:
    """Yield the clocks of those replicas that can be asked."""
    for number in range(_MOST_REPLICAS):
        fields = dict(part.split("=", 1) for part in server.info.get(f"slave{number}", "").split(",") if "=" in part)
        host, port = fields.get("ip", ""), fields.get("port", "")
        if not host or not port.isdigit():
            continue
        with suppress(CannotAsk), line_to(connection_to(server.client, host, int(port)), _REPLICA_SECONDS) as line:
            reading = read_clock(line)
            if isinstance(reading, Reading):
                yield f"{host}:{port}", reading
