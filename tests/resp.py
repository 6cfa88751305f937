"""Reading whole messages of the Redis protocol, RESP2 and RESP3, from a stream."""

from __future__ import annotations

from typing import BinaryIO


def read_request(stream: BinaryIO) -> tuple[bytes, tuple[bytes, ...]]:
    """Return one request as it came and as its words; EOFError if the stream ends first."""
    header = _read_line(stream)
    if not header.startswith(b"*"):
        return header, tuple(header.split())
    parts = [_read_bulk(stream, _read_line(stream)) for _ in range(int(header[1:]))]
    words = tuple(part.split(b"\r\n", 1)[1][:-2] for part in parts)
    return header + b"".join(parts), words


def read_reply(stream: BinaryIO) -> bytes:
    """Return one reply (or push message) as it came; EOFError if the stream ends first."""
    header = _read_line(stream)
    kind = header[:1]
    if kind in b"$!=":
        return _read_bulk(stream, header)
    if kind in b"*~>%|":
        return header + b"".join(read_reply(stream) for _ in range(_children(kind, int(header[1:]))))
    return header


def _children(kind: bytes, length: int) -> int:
    pairs = max(length, 0) * (2 if kind in b"%|" else 1)
    # An attribute precedes the reply that it belongs to.
    return pairs + 1 if kind == b"|" else pairs


def _read_line(stream: BinaryIO) -> bytes:
    line = stream.readline()
    if not line.endswith(b"\r\n"):
        raise EOFError
    return line


def _read_bulk(stream: BinaryIO, header: bytes) -> bytes:
    length = int(header[1:])
    if length < 0:
        return header
    body = stream.read(length + 2)
    if len(body) < length + 2:
        raise EOFError
    return header + body
