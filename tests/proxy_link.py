"""One connection through the proxy."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO

from tests.proxy_faults import CutError, Fault
from tests.resp import read_reply, read_request

if TYPE_CHECKING:
    from tests.proxy import Proxy


class Link:
    """A client's connection and ours to the server; one thread for the requests, one for the replies."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self.proxy = proxy
        self.late = False
        self._client, self._server = client, server
        _send_at_once(client, server)
        self._from_client: BinaryIO = client.makefile("rb")
        self._from_server: BinaryIO = server.makefile("rb")
        self._pending: deque[Fault] = deque()
        self._answered = threading.Condition()
        self._threads = [
            threading.Thread(target=self._run, args=(step,), name="proxy-link", daemon=True)
            for step in (self._request, self._reply)
        ]
        self._running = len(self._threads)

    def start(self) -> None:
        """Start both threads."""
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Wait for both threads."""
        for thread in self._threads:
            thread.join(10)

    def close(self) -> None:
        """End the connection on both sides; the threads notice."""
        for end in (self._client, self._server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def to_client(self, data: bytes) -> None:
        """Send to the client, who may be gone: the server's further replies still have to be read."""
        with contextlib.suppress(OSError):
            self._client.sendall(data)

    def _run(self, step: Callable[[], None]) -> None:
        try:
            while True:
                step()
        except EOFError:
            if step == self._request and self.late:
                self._await_replies()
        except (CutError, OSError):
            pass
        finally:
            self.close()
            self._release()

    def _request(self) -> None:
        raw, command = read_request(self._from_client)
        fault = self.proxy.record(command)
        fault.before(self)
        self.late |= self.proxy.pass_gate()
        with self._answered:
            self._pending.append(fault)
        self._server.sendall(raw)

    def _reply(self) -> None:
        reply = read_reply(self._from_server)
        self.proxy.pass_gate()
        if not reply.startswith(b">"):
            with self._answered:
                fault = self._pending.popleft()
                self._answered.notify_all()
            fault.after(self, reply)
            reply = fault.rewrite(reply)
        self.to_client(reply)

    def _await_replies(self) -> None:
        # The client has gone, but a request that was delivered late must still be executed.
        with self._answered:
            self._answered.wait_for(lambda: not self._pending or self._running < len(self._threads), 10)

    def _release(self) -> None:
        with self._answered:
            self._running -= 1
            last = not self._running
            self._answered.notify_all()
        if last:
            for end in (self._from_client, self._from_server, self._client, self._server):
                end.close()
            self.proxy.leave(self)


def _send_at_once(*ends: socket.socket) -> None:
    # Otherwise the commands of a pipeline wait for each other's acknowledgements.
    for end in ends:
        if end.family != socket.AF_UNIX:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
