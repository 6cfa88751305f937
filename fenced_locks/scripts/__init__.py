"""The Lua scripts: one file per operation, loaded once, named by SHA1 as Redis names them."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files


class Script:
    """
    A Lua script: its text and the SHA1 by which a server that has it knows it.

    Attributes:
        name: File name without ending; for messages.
        text: The source, as bytes.
        sha: Hex SHA1 of the text, as bytes.
    """

    __slots__ = ("name", "sha", "text")

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text.encode()
        # The name Redis gives a script; nothing secret rests on it.
        self.sha = hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()

    def __repr__(self) -> str:
        return f"<Script {self.name} {self.sha[:8].decode()}>"


@cache
def source(name: str) -> str:
    """Return the text of ``<name>.lua`` in this package."""
    return files(__name__).joinpath(f"{name}.lua").read_text(encoding="utf-8")


@cache
def load(name: str, *preludes: str) -> Script:
    """
    Return the script ``name``, with the Lua texts ``preludes`` put before it.

    A prelude defines local functions that the script calls, as the issuers' ``mint`` does.
    """
    return Script(name, "\n".join([*preludes, source(name)]))
