"""
A TCP proxy between a client and Redis that counts the commands and hurts them as a test asks.

    lost = proxy.drop_reply("EVALSHA")          # the next one is executed, its reply never arrives
    lock.acquire()
    lost.wait()

A fault is meant for the next `times` matching commands; faults are used up in the order in which they were
scripted. What to match is a command name, a tuple of names, or a function of the command, which is a tuple of
bytes. None stands for every command but those that set up a connection.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

from tests.proxy_faults import (
    ChangeReply,
    Command,
    CutError,
    DelayReply,
    DelayRequest,
    DropReply,
    DropRequest,
    Fault,
    Match,
    matches,
)
from tests.proxy_link import Link


class Proxy:
    """
    A proxy in front of the Redis at `url`, on a free port of 127.0.0.1.

    Attributes:
        url: The proxy's own address, for clients.
        requests: Every command seen, in order, also those of the set-up of connections.
        connections: How many connections were accepted.
        refused: How many were closed at once.
    """

    def __init__(self, url: str) -> None:
        self._server = urlsplit(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/{_database(url)}"
        self.requests: list[Command] = []
        self.connections = 0
        self.refused = 0
        self._changed = threading.Condition()
        self._script: list[tuple[Match, Fault]] = []
        self._links: list[Link] = []
        self._muted = self._refusing = self._closed = False
        self._acceptor = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self._acceptor.start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def drop_request(self, match: Match = None, times: int = 1) -> Fault:
        """Close the connection instead of forwarding the request."""
        return self._add(match, times, DropRequest())

    def drop_reply(self, match: Match = None, times: int = 1) -> Fault:
        """Have the request executed and close the connection instead of sending its reply."""
        return self._add(match, times, DropReply())

    def cut_reply(self, match: Match = None, *, after: int, times: int = 1) -> Fault:
        """Send the first `after` bytes of the reply and close the connection."""
        return self._add(match, times, DropReply(after))

    def delay_request(self, until: float | threading.Event, match: Match = None, times: int = 1) -> Fault:
        """Hold the request for some seconds or until an event; deliver it even if the client has gone."""
        return self._add(match, times, DelayRequest(until))

    def delay_reply(self, until: float | threading.Event, match: Match = None, times: int = 1) -> Fault:
        """Have the request executed at once and hold its reply."""
        return self._add(match, times, DelayReply(until))

    def change_reply(self, change: Callable[[bytes], bytes], match: Match = None, times: int = 1) -> Fault:
        """Send on what `change` makes of the reply as it came."""
        return self._add(match, times, ChangeReply(change))

    def spare(self) -> None:
        """Forget the faults that no command has met yet."""
        with self._changed:
            self._script.clear()

    def mute(self) -> None:
        """Forward nothing in either direction, on old and new connections, until `unmute`; keep requests."""
        self._set(muted=True)

    def unmute(self) -> None:
        """Deliver what was kept, and all that follows."""
        self._set(muted=False)

    def refuse(self) -> None:
        """Close new connections as they come, until `admit`."""
        self._set(refusing=True)

    def admit(self) -> None:
        """Accept connections again."""
        self._set(refusing=False)

    def disconnect(self) -> None:
        """Close all present connections."""
        with self._changed:
            links = list(self._links)
        for link in links:
            link.close()

    def retarget(self, url: str) -> None:
        """Send new connections to another server, and close the present ones."""
        self._server = urlsplit(url)
        self.disconnect()

    def calls(self, match: Match = None) -> list[Command]:
        """Return the matching commands seen, by default without those that set up connections."""
        with self._changed:
            return [command for command in self.requests if matches(match, command)]

    def forget(self) -> None:
        """Empty `requests`."""
        with self._changed:
            self.requests.clear()

    def wait_for_request(self, match: Match = None, timeout: float = 10, *, count: int = 1) -> Command:
        """Return the `count`-th matching command, as soon as the proxy has read it (not: forwarded it)."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.calls(match)) >= count, timeout):
                raise TimeoutError(f"Only {self.calls(match)} within {timeout} s, not {count}.")
            return self.calls(match)[count - 1]

    def close(self) -> None:
        """End all connections and threads."""
        self._set(closed=True)
        # Closing a listener does not wake a thread that waits in accept() everywhere.
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        self._acceptor.join(10)
        self._listener.close()
        self.disconnect()
        for link in list(self._links):
            link.join()

    def connect(self) -> socket.socket:
        """Return a new connection to the server."""
        if self._server.scheme == "unix":
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(self._server.path)
            return connection
        return socket.create_connection((self._server.hostname, self._server.port or 6379))

    def record(self, command: Command) -> Fault:
        """Note a command and return what is to happen to it."""
        with self._changed:
            self.requests.append(command)
            self._changed.notify_all()
            for entry in self._script:
                if matches(entry[0], command):
                    self._script.remove(entry)
                    return entry[1]
        return Fault()

    def sleep(self, until: float | threading.Event) -> None:
        """Wait for some seconds or an event, but not beyond the end of the proxy."""
        if isinstance(until, threading.Event):
            while not (until.wait(0.02) or self._closed):
                pass
        else:
            with self._changed:
                self._changed.wait_for(lambda: self._closed, until)
        self._cut_if_closed()

    def pass_gate(self) -> bool:
        """Wait while muted; return whether that was necessary."""
        with self._changed:
            muted = self._muted
            self._changed.wait_for(lambda: not self._muted or self._closed)
            self._cut_if_closed()
            return muted

    def leave(self, link: Link) -> None:
        """Forget a connection that has ended."""
        with self._changed:
            if link in self._links and not self._closed:
                self._links.remove(link)

    def _cut_if_closed(self) -> None:
        if self._closed:
            raise CutError

    def _add(self, match: Match, times: int, fault: Fault) -> Fault:
        with self._changed:
            self._script += [(match, fault)] * times
        return fault

    def _set(self, **states: bool) -> None:
        with self._changed:
            for name, value in states.items():
                setattr(self, f"_{name}", value)
            self._changed.notify_all()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            if self._closed:
                client.close()
                return
            if self._refusing or not self._admit(client):
                self.refused += 1
                client.close()

    def _admit(self, client: socket.socket) -> bool:
        try:
            link = Link(self, client, self.connect())
        except OSError:
            return False
        with self._changed:
            self.connections += 1
            self._links.append(link)
        link.start()
        return True


def _database(url: str) -> str:
    parts = urlsplit(url)
    in_query = parse_qs(parts.query).get("db", ["0"])[0]
    return in_query if parts.scheme == "unix" else parts.path.lstrip("/") or "0"
