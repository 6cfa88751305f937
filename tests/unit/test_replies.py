"""Reading replies of both protocols, in whatever pieces they come."""

import pytest
from redis._parsers import BaseParser
from redis.exceptions import InvalidResponse, NoScriptError, ResponseError

from fenced_locks.wire.replies import Replies

REPLIES = [
    (b"$5\r\nab\r\nc\r\n", b"ab\r\nc"),
    (b"$0\r\n\r\n", b""),
    (b"$-1\r\n", None),
    (b"*-1\r\n", None),
    (b"_\r\n", None),
    (b":-2\r\n", -2),
    (b"(12345678901234567890\r\n", 12345678901234567890),
    (b"+OK\r\n", b"OK"),
    (b"#t\r\n", True),
    (b"#f\r\n", False),
    (b",1.5\r\n", 1.5),
    (b"=7\r\ntxt:abc\r\n", b"abc"),
    (b"*0\r\n", []),
    (b"*2\r\n:1\r\n*1\r\n$1\r\na\r\n", [1, [b"a"]]),
    (b"~1\r\n:1\r\n", [1]),
    (b"%1\r\n+a\r\n*1\r\n:1\r\n", {b"a": [1]}),
    (b"|1\r\n+ttl\r\n:3\r\n:7\r\n", 7),
]


def replies():
    return Replies(BaseParser.parse_error)


@pytest.mark.parametrize(("sent", "reply"), REPLIES)
def test_every_kind_of_reply(sent, reply):
    assert replies().feed(sent) == [reply]


def test_any_piece_and_any_number_of_them():
    stream = b"".join(sent for sent, _ in REPLIES)
    expected = [reply for _, reply in REPLIES]
    assert replies().feed(stream) == expected
    for size in (1, 2, 3, 7, 50):
        reader, got = replies(), []
        for at in range(0, len(stream), size):
            got += reader.feed(stream[at : at + size])
        assert got == expected


def test_push_messages_are_no_replies():
    push = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n"
    assert replies().feed(push + b":1\r\n" + push + b":2\r\n" + push) == [1, 2]
    reader = replies()
    assert reader.feed(push[:20]) == []
    assert reader.feed(push[20:] + b":1\r\n") == [1]


@pytest.mark.parametrize("sent", [b"-NOSCRIPT no such\r\n", b"!16\r\nNOSCRIPT no such\r\n"])
def test_errors_are_given_as_redis_py_names_them(sent):
    (error,) = replies().feed(sent)
    assert isinstance(error, NoScriptError)
    assert str(error) == "no such"


def test_an_error_inside_a_list_is_an_item():
    ((first, second),) = replies().feed(b"*2\r\n:1\r\n-ERR bad\r\n")
    assert first == 1
    assert isinstance(second, ResponseError)


@pytest.mark.parametrize("sent", [b"HTTP/1.1 400 Bad Request\r\n", b":x\r\n", b"\r\n"])
def test_what_redis_does_not_speak_is_refused(sent):
    with pytest.raises((InvalidResponse, ValueError)):
        replies().feed(sent)
