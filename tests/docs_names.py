"""What the code blocks of a page need that a reader of the page does not see."""

from __future__ import annotations

import ast
import doctest
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.docs_runner import Block, blocks


def unseen_names(page: Path) -> Iterator[str]:
    """Yield the names that shown code uses, and that only hidden code has made."""
    seen, hidden = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for block in blocks(page):
        if "." in block.title or block.language not in ("python", "pycon"):
            continue
        made, used = _names(block)
        if block.hidden:
            hidden[block.title] |= made
            continue
        for name in sorted((used & hidden[block.title]) - seen[block.title] - made):
            yield f"{block.place}: {name}"
        seen[block.title] |= made


def unseen_modules(page: Path) -> Iterator[str]:
    """Yield the modules that shown files import, and that only hidden blocks have written."""
    files = [block for block in blocks(page) if _file(block).endswith(".py")]
    shown = {_file(block) for block in files if not block.hidden}
    unseen = {Path(_file(block)).stem for block in files} - {Path(name).stem for name in shown}
    for block in files:
        for node in ast.walk(ast.parse(block.text)):
            if isinstance(node, ast.ImportFrom) and not block.hidden:
                for module in {(node.module or "").rpartition(".")[2], *(name.name for name in node.names)} & unseen:
                    yield f"{block.place}: {module}"


def _file(block: Block) -> str:
    return block.title.partition(" (add)")[0]


def _names(block: Block) -> tuple[set[str], set[str]]:
    source = block.text
    if block.language == "pycon":
        source = "".join(example.source for example in doctest.DocTestParser().get_examples(source))
    made, used = set(), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else made).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            made.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            made |= {(name.asname or name.name).partition(".")[0] for name in node.names}
    return made, used
