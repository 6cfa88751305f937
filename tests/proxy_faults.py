"""What the proxy can do to a command."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.proxy_link import Link

Command = tuple[bytes, ...]
Match = str | tuple[str, ...] | Callable[[Command], bool] | None

SETUP = ("HELLO", "AUTH", "SELECT", "CLIENT")


def matches(match: Match, command: Command) -> bool:
    """Say whether a command is meant by a name, names, a function, or None."""
    if callable(match):
        return match(command)
    name = command[0].decode().upper() if command else ""
    if match is None:
        return name not in SETUP
    return name in ((match,) if isinstance(match, str) else match)


class CutError(Exception):
    """End the connection now."""


class Fault:
    """What happens to a command; this one does nothing. `happened` is set when it is over."""

    def __init__(self) -> None:
        self.happened = threading.Event()

    def before(self, link: Link) -> None:
        """Act when the request was read and before it goes to the server."""

    def after(self, link: Link, reply: bytes) -> None:
        """Act when the server's reply was read; what is not cut here is sent on."""
        self.happened.set()

    def rewrite(self, reply: bytes) -> bytes:
        """Return what the client gets as the reply."""
        return reply

    def wait(self, timeout: float = 10) -> None:
        """Return when the fault has happened; a delayed request, when the server has executed it."""
        if not self.happened.wait(timeout):
            raise TimeoutError(f"{type(self).__name__} did not happen within {timeout} s.")


class DropRequest(Fault):
    """The request does not reach the server; the connection ends."""

    def before(self, link: Link) -> None:
        """Cut."""
        self.happened.set()
        raise CutError


class DropReply(Fault):
    """The request is executed; of the reply only the first bytes, or none, arrive; the connection ends."""

    def __init__(self, after: int = 0) -> None:
        super().__init__()
        self._length = after

    def after(self, link: Link, reply: bytes) -> None:
        """Cut."""
        link.to_client(reply[: self._length])
        self.happened.set()
        raise CutError


class DelayRequest(Fault):
    """The request waits at the proxy, and is delivered even if the client has gone by then."""

    def __init__(self, until: float | threading.Event) -> None:
        super().__init__()
        self._until = until

    def before(self, link: Link) -> None:
        """Hold the request."""
        link.late = True
        link.proxy.sleep(self._until)


class DelayReply(DelayRequest):
    """The request is executed at once, and its reply waits at the proxy."""

    def before(self, link: Link) -> None:
        """Do nothing."""

    def after(self, link: Link, reply: bytes) -> None:
        """Hold the reply."""
        self.happened.set()
        link.proxy.sleep(self._until)


class ChangeReply(Fault):
    """The client gets something else than the server's reply."""

    def __init__(self, change: Callable[[bytes], bytes]) -> None:
        super().__init__()
        self._change = change

    def rewrite(self, reply: bytes) -> bytes:
        """Change the reply as it came, in the form of the protocol."""
        return self._change(reply)
