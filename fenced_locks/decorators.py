"""``with_fenced_lock``: run a view or a function under a lock."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

from asgiref.sync import iscoroutinefunction

from .blocks import aleaving, arun_view, leaving, refuse_transaction_of_request, run_view
from .calls import DecoratedCall
from .durations import Duration
from .exceptions import LockNotAcquired
from .responses import busy_response
from .shortcuts import FROM_SETTINGS, FromSettings, afenced_lock, check_overrides, fenced_lock
from .templates import ResourceTemplate

P = ParamSpec("P")
R = TypeVar("R")


def with_fenced_lock(
    resource: str,
    *others: str,
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

    Of several resources, ``"order:<id>", "stock:<sku>"``, all are taken or none, as by ``fenced_lock``. Their tokens
    are in ``request.fence_tokens["order:7"]``, or in the parameter ``fence_tokens``, which are there for one resource
    as well; ``request.fence_token`` then refuses every use and says why.

    A busy resource gives a view a response with status 423 and ``Retry-After``, and a function's caller
    ``LockNotAcquired``. A ``StaleToken`` that escapes a view becomes a response with status 409. A lease that a view
    turns out to have lost when it is given back is logged: its work is done.

    Under ``ATOMIC_REQUESTS`` the transaction of a view is opened inside the lock and committed before the release.
    Class-based views are decorated on ``dispatch``, by ``method_decorator``. A coroutine function gets a lock that
    awaits; as an async view under ``ATOMIC_REQUESTS`` it still gets Django's own error. What a view returns to be sent
    or rendered later, a streaming or a template response, is sent without the lock.

    Args:
        resource: The name, with placeholders.
        *others: More names; where two of a call are the same, they count once.
        timeout: Length of the lease in seconds; by default ``FENCED_LOCKS["TIMEOUT"]``.
        blocking_timeout: How long to wait, in seconds; by default ``FENCED_LOCKS["BLOCKING_TIMEOUT"]``.
        using: Cache alias; by default ``FENCED_LOCKS["USING"]``.
        on_busy: Called instead when the resource is busy, with the ``LockNotAcquired`` and then the arguments of the
            call; its result is returned.
        renew: Whether the lease is renewed until the call returns; by default ``FENCED_LOCKS["RENEW"]``.
        max_hold: After how many seconds it is renewed no more; by default ``FENCED_LOCKS["MAX_HOLD"]``.

    Raises:
        TypeError: The decorated object is a class or no function, or one whose body runs after it returned (a
            generator), or has a parameter ``fence_token`` for several resources; or an argument is of a wrong type.
        ValueError: A duration is none; the resource cannot be parsed or names what the signature does not have; or,
            when called, a placeholder has no usable value.

    When called, whatever ``fenced_lock`` raises, except that views answer as said above.
    """
    templates = [ResourceTemplate(text) for text in (resource, *others)]
    options: dict[str, Any] = {"using": using, "timeout": timeout, "blocking_timeout": blocking_timeout}
    options |= {"renew": renew, "max_hold": max_hold}
    check_overrides(timeout, blocking_timeout, renew, max_hold)
    if on_busy is not None and not callable(on_busy):
        raise TypeError(f"on_busy must be callable, not {on_busy!r}")

    def decorate(function: Callable[P, R]) -> Callable[..., R]:
        call = DecoratedCall(function, several=len(templates) > 1)
        for template in templates:
            template.check(call.signature)
        awaits = iscoroutinefunction(function)
        if on_busy is not None and iscoroutinefunction(on_busy) and not awaits:
            raise TypeError(f"on_busy must not be a coroutine function, since {function!r} is none: {on_busy!r}")
        run = _Runner(call, templates, options, on_busy)
        wrapper: Any = run.awaiting() if awaits else run.blocking()
        return wrapper  # type: ignore[no-any-return]

    return decorate


class _Runner:
    """Makes the wrapper of one decorated function."""

    def __init__(
        self,
        call: DecoratedCall,
        templates: Sequence[ResourceTemplate],
        options: dict[str, Any],
        on_busy: Callable[..., Any] | None,
    ) -> None:
        self._call, self._templates, self._options, self._on_busy = call, templates, options, on_busy

    def blocking(self) -> Callable[..., Any]:
        """Return the wrapper of a function that blocks."""

        @wraps(self._call.function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            names, request = self._bind(args, kwargs)
            lock = fenced_lock(*names, **self._options)
            if request is not None:
                refuse_transaction_of_request(names)
            try:
                lock.__enter__()
            except LockNotAcquired as busy:
                return self._answer(busy, request, args, kwargs)
            run = partial(self._call.run, args, kwargs, lock)
            if request is None:
                with leaving(lock):
                    return run()
            return run_view(run, lock, request, self._call.databases(wrapper))

        self._call.mark(wrapper)
        return wrapper

    def awaiting(self) -> Callable[..., Any]:
        """Return the wrapper of a coroutine function; Django itself refuses ``ATOMIC_REQUESTS`` for such a view."""

        @wraps(self._call.function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            names, request = self._bind(args, kwargs)
            lock = afenced_lock(*names, **self._options)
            try:
                await lock.__aenter__()
            except LockNotAcquired as busy:
                answer = self._answer(busy, request, args, kwargs)
                return await answer if inspect.isawaitable(answer) else answer
            if request is None:
                async with aleaving(lock):
                    return await self._call.arun(args, kwargs, lock)
            return await arun_view(partial(self._call.arun, args, kwargs, lock), lock, request)

        self._call.show_signature(wrapper)
        return wrapper

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[str], Any]:
        arguments = self._call.arguments(args, kwargs)
        return [template.bind(arguments) for template in self._templates], self._call.request(arguments)

    def _answer(self, busy: LockNotAcquired, request: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._on_busy is not None:
            return self._on_busy(busy, *args, **kwargs)
        if request is None:
            raise busy
        return busy_response(request, busy)
