"""Names like ``"order:<id>"``: parsed once, bound to each call by the signature of what is called."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_PLACEHOLDER = re.compile(r"<([^<>]*)>")


class ResourceTemplate:
    """
    The name of a resource, with placeholders for arguments of the decorated callable.

    ``<id>`` is the argument ``id``, passed by position or by name; ``<request.user.pk>`` reaches attributes. Calls,
    indexes and names with a leading underscore are not reached. Braces in a value are percent-encoded.

    Raises:
        TypeError: Not a string.
        ValueError: Empty, unbalanced, or a placeholder that is not a dotted name.
    """

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"resource must be a string like 'order:<id>', not {text!r}")
        pieces = _PLACEHOLDER.split(text)
        self.text = text
        self._literals = pieces[::2]
        self._paths = [_checked_path(text, path) for path in pieces[1::2]]
        if not text or any("<" in literal or ">" in literal for literal in self._literals):
            raise ValueError(f"resource must not be empty and its angle brackets must be balanced; got {text!r}")

    def check(self, signature: inspect.Signature) -> None:
        """
        Refuse placeholders that no call can fill.

        Raises:
            ValueError: A name that the signature does not have; one with ``**kwargs`` may have every name.
        """
        kinds = {parameter.kind for parameter in signature.parameters.values()}
        if inspect.Parameter.VAR_KEYWORD in kinds:
            return
        for first, *_ in self._paths:
            if first not in signature.parameters:
                raise ValueError(f"resource {self.text!r} names {first!r}, which is no parameter of {signature}")

    @property
    def names(self) -> list[str]:
        """The placeholders, in their order: ``["request.user.pk"]``."""
        return [".".join(path) for path in self._paths]

    def bind(self, arguments: Mapping[str, Any]) -> str:
        """
        Return the resource for one call.

        Args:
            arguments: The arguments of the call by name.

        Raises:
            ValueError: A placeholder has no value, or its value is None, empty, or has no text of its own.
        """
        return self.fill([self._value(path, arguments) for path in self._paths])

    def fill(self, values: Sequence[Any]) -> str:
        """
        Return the resource with these values for its placeholders, in their order.

        Raises:
            ValueError: A value is None, empty, or has no text of its own.
        """
        text = self._literals[0]
        for path, value, literal in zip(self._paths, values, self._literals[1:], strict=True):
            text += self._text(path, value) + literal
        return text

    def parse(self, resource: str) -> Iterator[list[str]]:
        """Yield the texts of the placeholders, in their order, with each of which the template gives ``resource``."""
        first, *literals = self._literals
        if resource.startswith(first):
            for texts in _splits(resource[len(first) :], literals):
                yield texts
                if "%7" in resource:
                    yield [text.replace("%7B", "{").replace("%7D", "}") for text in texts]

    def _value(self, path: list[str], arguments: Mapping[str, Any]) -> Any:
        try:
            value = arguments[path[0]]
            for attribute in path[1:]:
                value = getattr(value, attribute)
        except (KeyError, AttributeError) as error:
            raise ValueError(f"resource {self.text!r}: the call has no {'.'.join(path)!r}") from error
        return value

    def _text(self, path: list[str], value: Any) -> str:
        name = ".".join(path)
        if value is None or callable(value) or _has_no_text(value):
            raise ValueError(f"resource {self.text!r}: {name!r} is {value!r}, which does not name one resource")
        # Braces are Redis's hash tags in the name of a lock, and a value has no say in them.
        text = str(value).replace("{", "%7B").replace("}", "%7D")
        if not text:
            raise ValueError(f"resource {self.text!r}: {name!r} is empty")
        return text


def _splits(text: str, literals: Sequence[str]) -> Iterator[list[str]]:
    """Yield the ways to write ``text`` as something before each of the literals."""
    if not literals:
        if not text:
            yield []
        return
    literal, *others = literals
    if not others:
        # The rest belongs to the last placeholder.
        if text.endswith(literal) and len(text) > len(literal):
            yield [text[: len(text) - len(literal)]]
        return
    at = text.find(literal, 1)
    while at > 0:
        yield from ([text[:at], *rest] for rest in _splits(text[at + len(literal) :], others))
        at = text.find(literal, at + 1)


def _checked_path(text: str, path: str) -> list[str]:
    names = path.split(".")
    for name in names:
        if not name.isidentifier() or name.startswith("_"):
            raise ValueError(f"resource {text!r}: '<{path}>' is no dotted name of public attributes")
    return names


def _has_no_text(value: object) -> bool:
    # The default text holds an address: another one for every object.
    return type(value).__str__ is object.__str__ and type(value).__repr__ is object.__repr__
