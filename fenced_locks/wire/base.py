"""What every way to the server has in common."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from redis.exceptions import AuthenticationError, AuthorizationError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

if TYPE_CHECKING:
    from ..scripts import Script

UNREACHABLE = (RedisConnectionError, RedisTimeoutError, OSError)
REFUSED_FOR_GOOD = (AuthenticationError, AuthorizationError)

# Script, keys and arguments.
Undo: TypeAlias = "tuple[Script, Sequence[bytes], Sequence[bytes]]"


class NotSent(Exception):
    """The request never left; ``__cause__`` says why."""


class ReplyLost(Exception):
    """The request may have been carried out; ``__cause__`` says what happened to the reply."""


class Claim(NamedTuple):
    """A script call that a ticket completes, as its last argument; and what undoes it."""

    script: Script
    keys: Sequence[bytes]
    args: Sequence[bytes]
    undo: Undo


class Listener(Protocol):
    """
    A waiter's own connection, on which it blocks until a ticket comes.

    Attributes:
        claimed_at: When the claim was sent, in local monotonic time; None if it was not, and there is no answer.
    """

    claimed_at: float | None

    def hear(self, timeout: float, claim: Claim | None = None) -> bytes | None:
        """
        Return the ticket, or None if there is none within ``timeout`` seconds.

        The claim is sent the moment that the ticket comes, so that the server works while the caller still finds out.

        Raises:
            ReplyLost: The connection broke; a ticket may have been on its way.
            redis.exceptions.ResponseError: The server refuses to let us block.
        """

    def answer(self, timeout: float) -> Any:
        """
        Return the reply to the claim, undecoded; None if the server does not know the script.

        Raises:
            ReplyLost, redis.exceptions.ResponseError: As ``Wire.call``.
        """

    def hang_up(self) -> bytes | None:
        """Stop waiting; return the ticket if it came in that moment. A claim without answer is undone."""


class JoinedAndCancelled(Exception):
    """A cancellation came while a task registered; it has a listener now, which is to be hung up, and a reply."""

    def __init__(self, cancelled: CancelledError, listener: AsyncListener, reply: Any) -> None:
        self.cancelled, self.found = cancelled, (listener, reply)


class AsyncListener(Protocol):
    """
    A task's own connection, on which it blocks until a ticket comes. A cancelled call loses no ticket.

    Attributes:
        claimed_at: As ``Listener.claimed_at``.
    """

    claimed_at: float | None

    async def hear(self, timeout: float, claim: Claim | None = None) -> bytes | None:
        """As ``Listener.hear``."""

    async def answer(self, timeout: float) -> Any:
        """As ``Listener.answer``; who is cancelled has to hang up."""

    async def hang_up(self) -> bytes | None:
        """As ``Listener.hang_up``; asked again, it says the same."""

    def drop(self) -> None:
        """Close the connection without waiting; a ticket that is on its way is lost."""


class Wire(Protocol):
    """
    How scripts reach the server.

    Attributes:
        hides_retries: Whether a call may have been carried out more than once behind our back.
        server: What tells one server and database from another: two clients of one server are equal here.
        connections: Where connections are borrowed by who needs one to itself; None for a client without one pool.
    """

    hides_retries: bool
    server: tuple[object, ...]

    @property
    def connections(self) -> Any: ...

    def call(
        self, script: Script, keys: Sequence[bytes], args: Sequence[bytes], timeout: float, undo: Undo | None = None
    ) -> Any:
        """
        Run ``script`` once and return its reply, undecoded.

        Args:
            script: The script; sent by SHA1, and whole where the server does not know it.
            keys: The keys.
            args: The arguments.
            timeout: Seconds until the reply must be there, connecting included.
            undo: A script call that is sent behind a request whose reply did not come in time.

        Raises:
            NotSent: No connection could be made.
            ReplyLost: The request was sent, at least in part, and no reply came.
            redis.exceptions.ResponseError: The script failed.
        """

    def call_all(
        self, script: Script, calls: Sequence[tuple[Sequence[bytes], Sequence[bytes]]], timeout: float
    ) -> list[Any]:
        """
        Run ``script`` with each pair of keys and arguments, in one go; return the replies, an error in its place.

        Raises:
            NotSent, ReplyLost: As ``call``, about all of them.
        """

    def listen(
        self, script: Script, keys: Sequence[bytes], args: Sequence[bytes], timeout: float, wake: bytes, seconds: float
    ) -> tuple[Listener, Any] | None:
        """
        Run ``script`` and block on the list ``wake`` right after it, on a connection of our own.

        Args:
            script: The script, sent by SHA1 only.
            keys: Its keys.
            args: Its arguments.
            timeout: Seconds until its reply must be there, connecting included.
            wake: Key of the list.
            seconds: After how long the server may forget that somebody blocks; 0 for never.

        Returns:
            The listener and the script's reply, None in place of the reply if the server does not know the script;
            None alone if there is no connection to be had for this.

        Raises:
            NotSent, ReplyLost, redis.exceptions.ResponseError: As ``call``.
        """


class AsyncWire(Protocol):
    """As ``Wire``, for the tasks of any event loop."""

    hides_retries: bool
    server: tuple[object, ...]

    @property
    def connections(self) -> Any: ...

    async def call(
        self, script: Script, keys: Sequence[bytes], args: Sequence[bytes], timeout: float, undo: Undo | None = None
    ) -> Any:
        """As ``Wire.call``. The undo is also sent behind a request whose caller is cancelled."""

    async def call_all(
        self, script: Script, calls: Sequence[tuple[Sequence[bytes], Sequence[bytes]]], timeout: float
    ) -> list[Any]:
        """As ``Wire.call_all``."""

    async def listen(
        self, script: Script, keys: Sequence[bytes], args: Sequence[bytes], timeout: float, wake: bytes, seconds: float
    ) -> tuple[AsyncListener, Any] | None:
        """
        As ``Wire.listen``.

        Raises:
            JoinedAndCancelled: In place of a cancellation that came when the script was on its way.
        """
