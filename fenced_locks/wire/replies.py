"""Replies of the server, read as they come in: RESP2 and RESP3, several at once or one in pieces, undecoded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse

_PUSH = object()
_CHUNK = 65536


class _Incomplete(Exception):
    pass


class Replies:
    """Takes in bytes and gives out replies; an error of the server is given out, not raised."""

    def __init__(self, parse_error: Callable[[str], Exception]) -> None:
        self._parse_error = parse_error
        self._rest = b""

    def feed(self, data: bytes) -> list[Any]:
        """
        Return the replies that are complete by now, without push messages.

        Raises:
            redis.exceptions.InvalidResponse, ValueError: This is not what Redis speaks.
        """
        buffer, at, replies = self._rest + data, 0, []
        try:
            while at < len(buffer):
                reply, at = self._parse(buffer, at)
                if reply is not _PUSH:
                    replies.append(reply)
        except _Incomplete:
            pass
        self._rest = buffer[at:]
        return replies

    def _parse(self, buffer: bytes, at: int) -> tuple[Any, int]:
        end = buffer.find(b"\r\n", at)
        if end < 0:
            raise _Incomplete
        kind, line = buffer[at : at + 1], buffer[at + 1 : end]
        if kind in _SIMPLE:
            return _SIMPLE[kind](line), end + 2
        if kind == b"-":
            return self._error(line), end + 2
        if kind in _LONG and line == b"-1":
            return None, end + 2
        if kind in _LONG:
            return _LONG[kind](self, kind, buffer, end + 2, int(line))
        raise InvalidResponse(f"unexpected reply {kind + line[:80]!r}")

    def _bulk(self, kind: bytes, buffer: bytes, at: int, length: int) -> tuple[Any, int]:
        if len(buffer) < at + length + 2:
            raise _Incomplete
        text = buffer[at : at + length]
        if kind == b"!":
            return self._error(text), at + length + 2
        # A verbatim string begins with its format, "txt:".
        return text[4:] if kind == b"=" else text, at + length + 2

    def _aggregate(self, kind: bytes, buffer: bytes, at: int, length: int) -> tuple[Any, int]:
        items = []
        for _ in range(2 * length if kind in b"%|" else length):
            item, at = self._parse(buffer, at)
            items.append(item)
        if kind == b"|":
            # Attributes stand before the reply that they belong to.
            return self._parse(buffer, at)
        if kind == b"%":
            return dict(zip(items[::2], items[1::2], strict=True)), at
        return (_PUSH if kind == b">" else items), at

    def _error(self, text: bytes) -> Exception:
        return self._parse_error(text.decode("utf-8", "replace"))


class Reader:
    """The replies that come in on one socket, one at a time; what was read of one when a time-out came is kept."""

    def __init__(self, parse_error: Callable[[str], Exception]) -> None:
        self._replies = Replies(parse_error)
        self._complete: deque[Any] = deque()

    def read(self, sock: Any) -> Any:
        """
        Return the next reply; an error of the server is returned, not raised.

        Raises:
            OSError, redis.exceptions.ConnectionError: None came; by the socket's time-out, or for good.
            redis.exceptions.InvalidResponse, ValueError: This is not what Redis speaks.
        """
        while not self._complete:
            data = sock.recv(_CHUNK)
            if not data:
                raise RedisConnectionError("the server has closed the connection")
            self._complete.extend(self._replies.feed(data))
        return self._complete.popleft()


_SIMPLE: dict[bytes, Callable[[bytes], Any]] = {
    b"+": bytes,
    b":": int,
    b"(": int,
    b",": float,
    b"#": lambda line: line == b"t",
    b"_": lambda line: None,
}
_LONG = dict.fromkeys((b"$", b"=", b"!"), Replies._bulk) | dict.fromkeys(
    (b"*", b"~", b"%", b">", b"|"), Replies._aggregate
)
