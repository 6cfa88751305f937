"""``with_fenced_lock``: run a view or a function under a lock."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ContextDecorator, ExitStack, asynccontextmanager, contextmanager
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar, cast

from asgiref.sync import iscoroutinefunction
from django.db import connections, transaction
from django.http import HttpRequest
from redis.exceptions import RedisError

from .durations import Duration
from .exceptions import FencedLockError, LockNotAcquired, StaleToken
from .locks.aio import AsyncFencedLock
from .locks.sync import FencedLock
from .logs import about
from .responses import busy_response, stale_response
from .shortcuts import FROM_SETTINGS, AsyncReentrantLock, FromSettings, ReentrantLock, afenced_lock, fenced_lock
from .templates import ResourceTemplate
from .transactions import open_transactions

_log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


def with_fenced_lock(
    resource: str,
    *,
    timeout: Duration | FromSettings | None = FROM_SETTINGS,
    blocking_timeout: Duration | FromSettings | None = FROM_SETTINGS,
    using: str | None = None,
    on_busy: Callable[..., Any] | None = None,
    renew: bool | FromSettings = FROM_SETTINGS,
    max_hold: Duration | FromSettings | None = FROM_SETTINGS,
) -> Callable[[Callable[P, R]], Callable[..., R]]:
    """
    Return a decorator that runs a view or a function while it holds the lock of a resource.

    Placeholders in the resource bind to the arguments of each call: ``"order:<id>"``, ``"cart:<request.user.pk>"``.
    A view finds the lease in ``request.fence_token`` and ``request.fenced_lock``. A parameter called ``fence_token``
    is filled with the token; callers do not pass it.

    A busy resource gives a view a response with status 423 and ``Retry-After``, and a function's caller
    ``LockNotAcquired``. A ``StaleToken`` that escapes a view becomes a response with status 409. A lease that a view
    turns out to have lost when it is given back is logged: its work is done.

    Under ``ATOMIC_REQUESTS`` the transaction of a view is opened inside the lock and committed before the release.
    Class-based views are decorated on ``dispatch``, by ``method_decorator``. A coroutine function gets a lock that
    awaits; as an async view under ``ATOMIC_REQUESTS`` it still gets Django's own error. What a view returns to be sent
    or rendered later, a streaming or a template response, is sent without the lock.

    Args:
        resource: The name, with placeholders.
        timeout: Length of the lease in seconds; by default ``FENCED_LOCKS["TIMEOUT"]``.
        blocking_timeout: How long to wait, in seconds; by default ``FENCED_LOCKS["BLOCKING_TIMEOUT"]``.
        using: Cache alias; by default ``FENCED_LOCKS["USING"]``.
        on_busy: Called instead when the resource is busy, with the ``LockNotAcquired`` and then the arguments of the
            call; its result is returned.
        renew: Whether the lease is renewed until the call returns; by default ``FENCED_LOCKS["RENEW"]``.
        max_hold: After how many seconds it is renewed no more; by default ``FENCED_LOCKS["MAX_HOLD"]``.

    Raises:
        TypeError: The decorated object is no function, or one whose body runs after it returned (a generator).
        ValueError: The resource cannot be parsed or names what the signature does not have; or, when called, a
            placeholder has no usable value.

    When called, whatever ``fenced_lock`` raises, except that views answer as said above.
    """
    template = ResourceTemplate(resource)
    options: dict[str, Any] = {"using": using, "timeout": timeout, "blocking_timeout": blocking_timeout}
    options |= {"renew": renew, "max_hold": max_hold}
    if on_busy is not None and not callable(on_busy):
        raise TypeError(f"on_busy must be callable, not {on_busy!r}")

    def decorate(function: Callable[P, R]) -> Callable[..., R]:
        call = _Call(function)
        template.check(call.signature)
        run = _Runner(call, template, options, on_busy)
        wrapper: Any = run.awaiting() if iscoroutinefunction(function) else run.blocking()
        return wrapper  # type: ignore[no-any-return]

    return decorate


class _Runner:
    """Makes the wrapper of one decorated function."""

    def __init__(
        self, call: _Call, template: ResourceTemplate, options: dict[str, Any], on_busy: Callable[..., Any] | None
    ) -> None:
        self._call, self._template, self._options, self._on_busy = call, template, options, on_busy

    def blocking(self) -> Callable[..., Any]:
        """Return the wrapper of a function that blocks."""

        @wraps(self._call.function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            name, request = self._bind(args, kwargs)
            lock = fenced_lock(name, **self._options)
            if request is not None:
                _refuse_transaction_of_request(name)
            try:
                lock.__enter__()
            except LockNotAcquired as busy:
                return self._answer(busy, request, args, kwargs)
            run = partial(self._call.run, args, kwargs, lock)
            if request is None:
                with _leaving(lock):
                    return run()
            return _run_view(run, lock, request, self._call.databases(wrapper))

        self._call.mark(wrapper)
        return wrapper

    def awaiting(self) -> Callable[..., Any]:
        """Return the wrapper of a coroutine function; Django itself refuses ``ATOMIC_REQUESTS`` for such a view."""

        @wraps(self._call.function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            name, request = self._bind(args, kwargs)
            lock = afenced_lock(name, **self._options)
            try:
                await lock.__aenter__()
            except LockNotAcquired as busy:
                answer = self._answer(busy, request, args, kwargs)
                return await answer if inspect.isawaitable(answer) else answer
            if request is None:
                async with _aleaving(lock):
                    return await self._call.arun(args, kwargs, lock)
            return await _arun_view(partial(self._call.arun, args, kwargs, lock), lock, request)

        self._call.show_signature(wrapper)
        return wrapper

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, Any]:
        arguments = self._call.arguments(args, kwargs)
        return self._template.bind(arguments), self._call.request(arguments)

    def _answer(self, busy: LockNotAcquired, request: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._on_busy is not None:
            return self._on_busy(busy, *args, **kwargs)
        if request is None:
            raise busy
        return busy_response(request, busy)


def _run_view(run: Callable[[], Any], lock: ReentrantLock, request: Any, databases: list[str]) -> Any:
    try:
        with _shown(request, lock), _leaving(lock, quietly=True), ExitStack() as transactions:
            for alias in databases:
                transactions.enter_context(transaction.atomic(using=alias))
            return run()
    except StaleToken as stale:
        return stale_response(request, stale)


async def _arun_view(run: Callable[[], Any], lock: AsyncReentrantLock, request: Any) -> Any:
    try:
        with _shown(request, lock):
            async with _aleaving(lock, quietly=True):
                return await run()
    except StaleToken as stale:
        return stale_response(request, stale)


@contextmanager
def _shown(request: Any, lock: FencedLock | AsyncFencedLock) -> Iterator[None]:
    """Let the request show this lock, and the outer one afterwards."""
    outer = {name: getattr(request, name) for name in ("fence_token", "fenced_lock") if hasattr(request, name)}
    request.fence_token, request.fenced_lock = lock.fence_token, lock
    try:
        yield
    finally:
        for name, value in outer.items():
            setattr(request, name, value)


@contextmanager
def _leaving(lock: ReentrantLock, *, quietly: bool = False) -> Iterator[None]:
    """Leave the lock after the block; a lease found lost after work that succeeded is logged if ``quietly``."""
    try:
        yield
    except BaseException as error:
        lock.__exit__(type(error), error, error.__traceback__)
        raise
    try:
        lock.__exit__(None, None, None)
    except (FencedLockError, RedisError) as error:
        if not quietly:
            raise
        _log_failed_release(lock, error)


@asynccontextmanager
async def _aleaving(lock: AsyncReentrantLock, *, quietly: bool = False) -> AsyncIterator[None]:
    """Do the same for a lock that awaits."""
    try:
        yield
    except BaseException as error:
        await lock.__aexit__(type(error), error, error.__traceback__)
        raise
    try:
        await lock.__aexit__(None, None, None)
    except (FencedLockError, RedisError) as error:
        if not quietly:
            raise
        _log_failed_release(lock, error)


def _log_failed_release(lock: FencedLock | AsyncFencedLock, error: Exception) -> None:
    known = about(lock.name, error=error)
    _log.warning("the work under the lock of %r is done, but its release failed: %s", lock.name, error, extra=known)


def _refuse_transaction_of_request(resource: str) -> None:
    """Say so where the mark did not reach Django: what the view reads may be older than its lease."""
    for alias in open_transactions():
        if connections.settings[alias]["ATOMIC_REQUESTS"]:
            raise transaction.TransactionManagementError(
                f"cannot lock {resource!r} inside the transaction that ATOMIC_REQUESTS opened on database {alias!r}: "
                "decorate the view function or the dispatch method with with_fenced_lock"
            )


class _TransactionsAreOurs(set[str]):
    """
    The mark by which Django leaves the transactions of a view to its lock.

    Django asks whether an alias is in it, and every alias is; its elements are those that the user marked with
    ``transaction.non_atomic_requests``.
    """

    def __contains__(self, alias: object) -> bool:
        return True


class _Call:
    """The decorated function: its signature without ``fence_token``, and how it is called."""

    def __init__(self, function: Callable[..., Any]) -> None:
        _refuse_late_bodies(function)
        self.function = function
        full = _signature(function)
        names = list(full.parameters)
        self._token_at = names.index("fence_token") if "fence_token" in names else None
        self._token_kind = full.parameters["fence_token"].kind if self._token_at is not None else None
        self.signature = full.replace(parameters=[p for p in full.parameters.values() if p.name != "fence_token"])
        # A wrapper may take or give other arguments than what it wraps.
        self._own = inspect.signature(function, follow_wrapped=False) if hasattr(function, "__wrapped__") else None
        # Only the innermost of several locks opens the transactions; the attributes are copied by functools.wraps.
        self._is_innermost = not isinstance(getattr(function, "_non_atomic_requests", None), _TransactionsAreOurs)

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name, defaults included; raises ``TypeError`` as the call itself would."""
        if self._token_at is not None and "fence_token" in kwargs:
            raise TypeError("fence_token is filled in by with_fenced_lock and cannot be passed")
        if self._own is None:
            return _by_name(self.signature.bind(*args, **kwargs))
        try:
            return _by_name(self.signature.bind_partial(*args, **kwargs))
        except TypeError:
            return _by_name(self._own.bind(*args, **kwargs))

    def request(self, arguments: dict[str, Any]) -> Any:
        """Return the request if this is a view: its first argument, after self; one of REST framework's too."""
        for name in list(arguments)[:2]:
            value = arguments[name]
            if isinstance(value, HttpRequest) or isinstance(getattr(value, "_request", None), HttpRequest):
                return value
            if name != "self":
                break
        return None

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any], lock: ReentrantLock) -> Any:
        """Call the function as it was called, with the token where it has a parameter for it."""
        args, kwargs = self._with_token(args, kwargs, lock.fence_token)
        result = self.function(*args, **kwargs)
        _refuse_late_result(self.function, result)
        return result

    async def arun(self, args: tuple[Any, ...], kwargs: dict[str, Any], lock: AsyncReentrantLock) -> Any:
        """Do the same for a coroutine function."""
        args, kwargs = self._with_token(args, kwargs, lock.fence_token)
        result = await cast("Any", self.function(*args, **kwargs))
        _refuse_late_result(self.function, result)
        return result

    def _with_token(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], token: int | None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        at = self._token_at
        if at is None:
            return args, kwargs
        by_position = self._token_kind is inspect.Parameter.POSITIONAL_ONLY or at < len(args)
        if by_position and self._token_kind is not inspect.Parameter.KEYWORD_ONLY:
            return (*args[:at], token, *args[at:]), kwargs
        return args, {**kwargs, "fence_token": token}

    def mark(self, wrapper: Any) -> None:
        """Tell Django, and a lock around this one, that the transactions of this view are opened inside the lock."""
        if self._is_innermost:
            marked = getattr(self.function, "_non_atomic_requests", ())
            wrapper._non_atomic_requests = _TransactionsAreOurs(marked)
        self.show_signature(wrapper)

    def show_signature(self, wrapper: Any) -> None:
        """Let nobody see the parameter that is filled in."""
        if self._token_at is not None:
            wrapper.__signature__ = self.signature

    def databases(self, wrapper: Any) -> list[str]:
        """Return the aliases whose transactions are to be opened: those with ATOMIC_REQUESTS that nobody excepted."""
        if not self._is_innermost:
            return []
        excepted = set(iter(wrapper._non_atomic_requests))
        wanted = [alias for alias in connections if connections.settings[alias]["ATOMIC_REQUESTS"]]
        return [alias for alias in wanted if alias not in excepted]


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    found: Any = inspect.unwrap(function, stop=lambda f: isinstance(f, partial) or hasattr(f, "__signature__"))
    if isinstance(found, partial):
        # method_decorator hands over a partial that claims to wrap the unbound method, self included.
        found = partial(found.func, *found.args, **found.keywords)
    return inspect.signature(found)


def _refuse_late_bodies(function: object) -> None:
    if not callable(function) or isinstance(function, (staticmethod, classmethod)):
        hint = "; put it below staticmethod and classmethod" if callable(function) else ""
        raise TypeError(f"with_fenced_lock decorates functions and views, not {function!r}{hint}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"the body of a generator runs after its call returned, without the lock: {function!r}")


def _refuse_late_result(function: object, result: object) -> None:
    if inspect.iscoroutine(result):
        result.close()
    # ContextDecorator: what contextlib.contextmanager makes of a generator.
    if inspect.isawaitable(result) or inspect.isgenerator(result) or isinstance(result, ContextDecorator):
        kind = type(result).__name__
        raise TypeError(f"{function!r} returned a {kind}, which would run after the lease is given back")


def _by_name(bound: inspect.BoundArguments) -> dict[str, Any]:
    bound.apply_defaults()
    by_name = dict(bound.arguments)
    for parameter in bound.signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            for name, value in by_name.pop(parameter.name, {}).items():
                by_name.setdefault(name, value)
    return by_name
