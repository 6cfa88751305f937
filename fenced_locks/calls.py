"""A decorated function: how its arguments are read, and how it is called with the token."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncContextDecorator, ContextDecorator
from functools import partial
from typing import Any, cast

from django.db import connections
from django.http import HttpRequest

from .several import AnyAsyncLock, AnyLock

# The parameters that are filled in, and the attributes of the lock that they are filled with.
_FILLED = ("fence_token", "fence_tokens")
_COLLECTS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class _TransactionsAreOurs(set[str]):
    """
    The mark by which Django leaves the transactions of a view to its lock.

    Django asks whether an alias is in it, and every alias is; its elements are those that the user marked with
    ``transaction.non_atomic_requests``.
    """

    def __contains__(self, alias: object) -> bool:
        return True


class DecoratedCall:
    """The decorated function: its signature without the tokens, and how it is called."""

    def __init__(self, function: Callable[..., Any], *, several: bool) -> None:
        _refuse_late_bodies(function)
        self.function = function
        full = _signature(function)
        parameters = enumerate(full.parameters.values())
        self._filled = [(at, one) for at, one in parameters if one.name in _FILLED and one.kind not in _COLLECTS]
        filled = {parameter.name for _, parameter in self._filled}
        if several and "fence_token" in filled:
            raise TypeError(
                f"several resources have several fence tokens: call the parameter fence_tokens, and take "
                f"fence_tokens['order:7'] from it, instead of fence_token in {full} of {function!r}"
            )
        self.signature = full.replace(parameters=[p for p in full.parameters.values() if p.name not in filled])
        # A wrapper may take or give other arguments than what it wraps.
        self._own = inspect.signature(function, follow_wrapped=False) if hasattr(function, "__wrapped__") else None
        # Only the innermost of several locks opens the transactions; the attributes are copied by functools.wraps.
        self._is_innermost = not isinstance(getattr(function, "_non_atomic_requests", None), _TransactionsAreOurs)

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name, defaults included; raises ``TypeError`` as the call itself would."""
        for _, parameter in self._filled:
            if parameter.name in kwargs:
                raise TypeError(f"{parameter.name} is filled in by with_fenced_lock and cannot be passed")
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

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any], lock: AnyLock) -> Any:
        """Call the function as it was called, with the tokens where it has a parameter for them."""
        args, kwargs = self._with_tokens(args, kwargs, lock)
        result = self.function(*args, **kwargs)
        _refuse_late_result(self.function, result)
        return result

    async def arun(self, args: tuple[Any, ...], kwargs: dict[str, Any], lock: AnyAsyncLock) -> Any:
        """Do the same for a coroutine function."""
        args, kwargs = self._with_tokens(args, kwargs, lock)
        result = await cast("Any", self.function(*args, **kwargs))
        _refuse_late_result(self.function, result)
        return result

    def _with_tokens(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], lock: AnyLock | AnyAsyncLock
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        for at, parameter in self._filled:
            value: object = getattr(lock, parameter.name)
            by_position = parameter.kind is inspect.Parameter.POSITIONAL_ONLY or at < len(args)
            if by_position and parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
                args = (*args[:at], value, *args[at:])
            else:
                kwargs = {**kwargs, parameter.name: value}
        return args, kwargs

    def mark(self, wrapper: Any) -> None:
        """Tell Django, and a lock around this one, that the transactions of this view are opened inside the lock."""
        if self._is_innermost:
            marked = getattr(self.function, "_non_atomic_requests", ())
            wrapper._non_atomic_requests = _TransactionsAreOurs(marked)
        self.show_signature(wrapper)

    def show_signature(self, wrapper: Any) -> None:
        """Let nobody see the parameters that are filled in."""
        if self._filled:
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
    if isinstance(function, type):
        hint = "decorate its dispatch method, by method_decorator(with_fenced_lock(...), name='dispatch')"
        raise TypeError(f"with_fenced_lock decorates functions and views, not {function!r}; {hint}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"the body of a generator runs after its call returned, without the lock: {function!r}")


def _refuse_late_result(function: object, result: object) -> None:
    if inspect.iscoroutine(result):
        result.close()
    # What contextlib.contextmanager and its twin make of a generator is a decorator, too.
    late = ContextDecorator, AsyncContextDecorator, AsyncGenerator
    if inspect.isawaitable(result) or inspect.isgenerator(result) or isinstance(result, late):
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
