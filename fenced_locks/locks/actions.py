"""
The words in which an operation is written down: generators, each of which yields an action and is sent what came of it.

That is the reply, the token or the ticket; or there is thrown ``NotSent``, ``ReplyLost``, the script's error or
whatever else it was. Whoever drives them waits in its own way, with or without ``await``; every decision stands
here once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, TypeVar

from ..issuers import AnyIssuer
from ..scripts import Script
from ..wire import Claim, Listener, Undo
from . import core
from .core import Lease


class Request(NamedTuple):
    """One attempt to run a script; the arguments of ``Wire.call``."""

    script: Script
    keys: Sequence[bytes]
    args: Sequence[bytes]
    timeout: float
    undo: Undo | None = None


class RequestAll(NamedTuple):
    """One attempt to run a script with each of these keys and arguments; the arguments of ``Wire.call_all``."""

    script: Script
    calls: Sequence[tuple[Sequence[bytes], Sequence[bytes]]]
    timeout: float


class Pause(NamedTuple):
    """Seconds to wait."""

    seconds: float


class Ask(NamedTuple):
    """Something to be asked of an issuer outside Redis, such as a token."""

    question: Callable[[], Any]


class Work(NamedTuple):
    """Something of the caller's, that is awaited where it can be."""

    call: Callable[[], Any]


class Listen(NamedTuple):
    """A script, and to block on a list right after it; the arguments of ``Wire.listen``."""

    script: Script
    keys: Sequence[bytes]
    args: Sequence[bytes]
    timeout: float
    wake: bytes
    seconds: float


class Hear(NamedTuple):
    """So many seconds to wait for the ticket, and what to send when it comes; the arguments of ``Listener.hear``."""

    listener: Listener
    timeout: float
    claim: Claim | None


class Answer(NamedTuple):
    """So many seconds to wait for the reply to the claim."""

    listener: Listener
    timeout: float


class HangUp(NamedTuple):
    """The end of waiting for the ticket."""

    listener: Listener


Action: TypeAlias = Request | RequestAll | Pause | Ask | Work | Listen | Hear | Answer | HangUp
T = TypeVar("T")
Steps: TypeAlias = Generator[Action, Any, T]


@dataclass(slots=True)
class Target:
    """
    What the steps of one lock are about.

    Attributes:
        resource: Name of the lock, for messages.
        lock: The lock key.
        counter: The counter key.
        queue: The queue key.
        wake: The wake key.
        issuer: Who mints.
        reply_limit: Longest wait for one reply in seconds; None for without.
        hides_retries: Whether requests may be carried out more than once behind our back.
    """

    resource: str
    lock: bytes
    counter: bytes
    queue: bytes
    wake: bytes
    issuer: AnyIssuer
    reply_limit: float | None
    hides_retries: bool


class Claimed(NamedTuple):
    """A claim of the lock that was sent already: by whom, when, under which owner id and for how many milliseconds."""

    listener: Listener
    at: float
    owner: bytes
    lease_ms: bytes


@dataclass(slots=True)
class Call:
    """
    One call of ``acquire``, over all its tries.

    Attributes:
        deadline: Monotonic time at which it must be over; None for no deadline of its own.
        minted: The owner id that was made for this call; None where the caller chose one.
        lost: Owner ids of attempts that were sent and whose replies were lost: a lease of theirs is ours.
        claimed: A claim of the lock that nobody has answered yet.
        ticket: What says that the lock was handed to us; None if it was not.
        waiter: The id under which we may be registered as a waiter; empty if we are not.
        polls: Whether we can only try, without being registered: for want of a connection, or since we do not wait.
        busy: What the last refusal said.
        lease: What was granted.
    """

    deadline: float | None = None
    minted: bytes | None = None
    lost: list[bytes] = field(default_factory=list)
    ticket: bytes | None = None
    claimed: Claimed | None = None
    waiter: bytes = b""
    polls: bool = False
    busy: core.Busy = field(default_factory=core.Busy)
    lease: Lease | None = None
