"""
Run the code blocks of a documentation page in order, as a reader would: in an empty folder, on a real server.

The fence of a block says what is done with it:

    ```python title="shop/views.py"         write this file of the page's project
    ```python title="shop/views.py (add)"   append to this file
    ```python                               run it; the names stay for the next blocks
    ```pycon                                run its >>> lines and compare what they print
    ```pycon title="Terminal A"             the same in a session of its own: another holder, other names
    ```console                              run its $ lines and compare what they print, if output is shown
    ```console title="Worker"               start its $ line in a terminal of its own, where it runs until the page ends
    <!-- not run: reason -->                in front of a block: it is only shown
    <!-- needs: celery, django.tasks -->    anywhere: modules without which the page cannot be run

A block inside an HTML comment is run but not shown; what is shown needs no name and no module of it. In expected
output ``...`` stands for anything, and what differs from run to run is alike: times, owner ids, tokens of 16 digits,
fractions of seconds. The other pages go on with the project of the tutorial.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import django

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "pages"
TUTORIAL = PAGES / "tutorial.md"
PROJECT_STANDS = "<!-- the other pages go on from here -->"

_FENCE = re.compile(
    r"(?:<!-- not run: (?P<reason>[^>]+?) -->\s*)?"
    r"^(?P<indent> *)```(?P<language>[\w-]*)(?: title=\"(?P<title>[^\"]+)\")?[^\n`]*\n"
    r"(?P<text>.*?)^(?P=indent)```[ ]*$",
    re.MULTILINE | re.DOTALL,
)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_NEEDS = re.compile(r"^<!-- needs: ([\w., ]+) -->$", re.MULTILINE)
_VARIES = {
    "(time)": re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d\.\d+"),
    "(owner id)": re.compile(r"[\w.-]+:\d+:[0-9a-f]{24}"),
    "(token)": re.compile(r"\b\d{16}\b"),
    "(seconds)": re.compile(r"\b\d+\.\d+\b"),
}
# Celery warns of root, who runs the tests in a container, and calls what redis-py 8 deprecates.
_MAY_WARN = "celery.platforms", "celery.backends.redis"
_COMPARE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class BlockFailed(Exception):
    """A block did not do what its page says."""


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: Path
    line: int
    language: str
    title: str
    text: str
    reason: str | None
    hidden: bool = False

    @property
    def place(self) -> str:
        """Return where the block stands: page and line."""
        return f"{self.page.name}:{self.line}"


def blocks(page: Path, text: str | None = None) -> Iterator[Block]:
    """Yield the blocks of a page, or of the part of it that is given as ``text``."""
    text = page.read_text() if text is None else text
    comments = [match.span() for match in _COMMENT.finditer(text)]
    for match in _FENCE.finditer(text):
        yield Block(
            page=page,
            line=text.count("\n", 0, match.start("text")),
            language=match["language"],
            title=match["title"] or "",
            text=re.sub(f"^{match['indent']}", "", match["text"], flags=re.MULTILINE),
            reason=match["reason"],
            hidden=any(start < match.start("text") < end for start, end in comments),
        )


def needed_modules(page: Path) -> list[str]:
    """Return the modules without which the page cannot be run."""
    return [name for names in _NEEDS.findall(page.read_text()) for name in re.split(r", *", names)]


def missing_modules(page: Path) -> list[str]:
    """Return those of them that are not installed."""
    return [name for name in needed_modules(page) if importlib.util.find_spec(name) is None]


class Alike(doctest.OutputChecker):
    """Compare output with everything that differs from run to run replaced by its kind."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        """Return whether what was printed is what the page shows."""
        for kind, pattern in _VARIES.items():
            want, got = pattern.sub(kind, want), pattern.sub(kind, got)
        return super().check_output(want, got, optionflags)


class Terminal:
    """A Python session in a thread of its own, so that each terminal is another holder of locks."""

    def __init__(self) -> None:
        self._names: dict[str, Any] = {"__name__": "__console__"}
        self._thread = ThreadPoolExecutor(1)

    def run(self, work: Callable[[Block, dict[str, Any]], None], block: Block) -> None:
        """Run a block in this session."""
        self._thread.submit(work, block, self._names).result()


class Session:
    """The project folder of one page, and what runs in it until the block of ``with`` is left."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._terminals: dict[str, Terminal] = {}
        self._running: list[tuple[subprocess.Popen[bytes], Path]] = []

    def __enter__(self) -> Session:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        for process, log in self._running:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
            if error is not None:
                print(f"--- {log.name}", log.read_text(errors="replace"), sep="\n")  # noqa: T201

    def run(self, block: Block) -> None:
        """Do what the fence of the block says."""
        if block.reason is not None:
            return
        if "." in block.title:
            self._write(block)
        elif block.language == "console" and block.title:
            self._start(block)
        elif block.language == "console":
            self._run_console(block)
        elif block.language in _IN_TERMINAL:
            self._terminal(block.title).run(_IN_TERMINAL[block.language], block)
        else:
            raise BlockFailed(f"{block.place}: a block of {block.language!r} is neither run nor excused")

    def _write(self, block: Block) -> None:
        name, add, _ = block.title.partition(" (add)")
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.read_text() + "\n" + block.text if add else block.text)

    def _start(self, block: Block) -> None:
        command = block.text.partition("\n")[0].removeprefix("$ ")
        log = self._folder / f"{block.title}.log"
        with log.open("wb") as output:
            # "exec", so that a signal reaches the program and not a shell before it.
            process = subprocess.Popen(
                f"exec {command}", shell=True, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        self._running.append((process, log))

    def _run_console(self, block: Block) -> None:
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, _, want = part.partition("\n")
            code, got = _shell(command, self._folder)
            same = not want.strip() or Alike().check_output(want, got, _COMPARE)
            if code or not same:
                raise BlockFailed(f"{block.place}: {command} ended with {code} and printed\n{got}")

    def _terminal(self, title: str) -> Terminal:
        if not self._terminals:
            django.setup()
        return self._terminals.setdefault(title, Terminal())


def _shell(command: str, folder: Path) -> tuple[int, str]:
    done = subprocess.run(
        f"exec 2>&1; {command}", shell=True, cwd=folder, text=True, stdout=subprocess.PIPE, check=False
    )
    return done.returncode, done.stdout


def _run_python(block: Block, names: dict[str, Any]) -> None:
    exec(compile("\n" * block.line + block.text, str(block.page), "exec"), names)


def _run_pycon(block: Block, names: dict[str, Any]) -> None:
    test = doctest.DocTestParser().get_doctest(block.text, names, block.title, str(block.page), block.line)
    runner = doctest.DocTestRunner(Alike(), optionflags=_COMPARE)
    report: list[str] = []
    failed = runner.run(test, out=report.append, clear_globs=False).failed
    names.update(test.globs)
    if failed:
        raise BlockFailed("".join(report))


_IN_TERMINAL = {"python": _run_python, "pycon": _run_pycon}


def set_up(folder: Path) -> None:
    """Make the project of the tutorial, with which the other pages go on."""
    run_in(folder, blocks(TUTORIAL, TUTORIAL.read_text().partition(PROJECT_STANDS)[0]))


def run_in(folder: Path, of_page: Iterable[Block]) -> None:
    """Run blocks in order, in this folder."""
    with Session(folder) as session:
        for block in of_page:
            session.run(block)


def environment(folder: Path, redis_url: str) -> dict[str, str]:
    """Return the environment of a page's process: this Python, the page's project, its server, warnings as errors."""
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "mysite.settings",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        "PYTHONWARNINGS": ",".join(["error", *(f"ignore:::{module}" for module in _MAY_WARN)]),
        "REDIS_URL": redis_url,
        "LOCKS_URL": f"{redis_url[:-1]}1",  # another database of that server
        # What the reader has installed or not must not matter.
        "PYTEST_ADDOPTS": "-p no:asyncio -p no:cacheprovider",
    }


def write_files(folder: Path, page: Path) -> None:
    """Write the files of a page, and run nothing."""
    run_in(folder, [block for block in blocks(page) if "." in block.title])


def run_in_process(folder: Path, redis_url: str, *page: Path) -> None:
    """Run a page in a process of its own, with its own settings and models; without a page, set up the project."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.docs_runner", *map(str, page)],
        cwd=folder,
        env=environment(folder, redis_url),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=90)
        finally:
            # With whatever the page has started and not ended.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        raise BlockFailed(output)


if __name__ == "__main__":
    try:
        run_in(Path.cwd(), blocks(Path(sys.argv[1]))) if sys.argv[1:] else set_up(Path.cwd())
    except BlockFailed as failure:
        sys.exit(str(failure))
