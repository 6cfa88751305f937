"""The README and the docs do what they say, and say what the code has."""

from __future__ import annotations

import os
import re
import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from django.test import override_settings

import fenced_locks
from fenced_locks import checks, exceptions, logs
from fenced_locks.conf import Conf, conf
from tests import docs_names, docs_runner
from tests.helpers import wait_until

README = docs_runner.ROOT / "README.md"
REFERENCE = docs_runner.PAGES / "reference"
ALL_PAGES = [README, *sorted(docs_runner.PAGES.rglob("*.md"))]
PAGES_WITH_BLOCKS = [page for page in ALL_PAGES if any(docs_runner.blocks(page))]


def prose(page: Path) -> list[str]:
    """Return the lines of a page outside its code blocks, tables and comments."""
    text = re.sub(r"^ *```.*?^ *```|<!--.*?-->", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [line for line in text.splitlines() if not line.startswith("|")]


@pytest.mark.usefixtures("r")
@pytest.mark.parametrize("page", PAGES_WITH_BLOCKS, ids=lambda page: page.stem)
def test_every_block_does_what_its_page_says(page: Path, tmp_path: Path, redis_url: str, shop: Path) -> None:
    if missing := docs_runner.missing_modules(page):
        pytest.skip(f"without {', '.join(missing)}; what is not Django's own comes with the extra 'recipes'")
    if page != docs_runner.TUTORIAL:
        shutil.copytree(shop, tmp_path, dirs_exist_ok=True)
    docs_runner.run_in_process(tmp_path, redis_url, page)


@pytest.mark.parametrize(
    "text",
    [
        "```pycon\n>>> 1 + 1\n3\n```",
        "```pycon\n>>> 1 / 0\n```",
        "```python\nassert False\n```",
        "```console\n$ echo 1\n2\n```",
        "```console\n$ false\n```",
        "```bash\ntrue\n```",
        "```\nplain\n```",
        "- in a list\n\n    ```console\n    $ false\n    ```",
        "<!-- hidden\n```console\n$ false\n```\n-->",
    ],
)
def test_a_block_that_fails_or_is_not_run_is_noticed(text: str, tmp_path: Path) -> None:
    session = docs_runner.Session(tmp_path)
    (block,) = docs_runner.blocks(README, text + "\n")
    with pytest.raises((docs_runner.BlockFailed, AssertionError)):
        session.run(block)


def test_only_blocks_with_a_reason_are_left_out() -> None:
    excused = [block for page in ALL_PAGES for block in docs_runner.blocks(page) if block.reason]
    assert {block.language for block in excused} <= {"bash", "text"}, excused


def test_a_page_is_left_out_only_for_want_of_what_the_recipes_need(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- needs: json, no_such_module, django.no_such_module -->\n")
    assert docs_runner.missing_modules(page) == ["no_such_module", "django.no_such_module"]
    needed = {name for page in ALL_PAGES for name in docs_runner.needed_modules(page)}
    assert needed == {"celery", "django.tasks", "redis_lock", "rest_framework"}


def test_what_runs_in_a_terminal_of_its_own_ends_with_its_page(tmp_path: Path) -> None:
    (block,) = docs_runner.blocks(README, '```console title="Worker"\n$ sh -c "echo $$; exec sleep 60"\n```\n')
    log = tmp_path / "Worker.log"
    with docs_runner.Session(tmp_path) as session:
        session.run(block)
        pid = int(wait_until(lambda: log.exists() and log.read_text()))
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("page", PAGES_WITH_BLOCKS, ids=lambda page: page.stem)
def test_a_reader_sees_where_names_come_from(page: Path) -> None:
    assert [*docs_names.unseen_names(page), *docs_names.unseen_modules(page)] == []


def test_a_name_that_a_reader_does_not_see_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- hidden\n```python\nfrom shop.models import Order\nann = 1\n```\n"
        '```python title="shop/labels.py"\npass\n```\n-->\n'
        "```pycon\n>>> ann = 2\n>>> ann, Order\n```\n"
        '```python title="shop/tasks.py"\nfrom .labels import print_label\n```\n'
    )
    assert list(docs_names.unseen_names(page)) == ["page.md:10: Order"]
    assert list(docs_names.unseen_modules(page)) == ["page.md:14: labels"]


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.stem)
def test_pages_add_to_the_settings_and_addresses_that_a_reader_has(page: Path) -> None:
    files = [block.title for block in docs_runner.blocks(page) if not block.hidden]
    assert page == docs_runner.TUTORIAL or not {"mysite/settings.py", "mysite/urls.py"} & set(files)


def test_no_fence_is_overlooked() -> None:
    for page in ALL_PAGES:
        fences = re.findall(r"^ *```", page.read_text(), flags=re.MULTILINE)
        assert len(fences) == 2 * len(list(docs_runner.blocks(page))), page


def test_readme_is_short_and_has_each_command_once_on_a_line() -> None:
    lines = README.read_text().splitlines()
    assert len(lines) < 120
    commands = [line for line in lines if line.startswith("python3 -m venv ")]
    assert [command.rpartition("/")[2] for command in commands] == ["manage.py demo", "pytest"]


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.stem)
def test_one_sentence_per_line(page: Path) -> None:
    lines = [re.sub(r"^ *\d\. ", "", line) for line in prose(page)]
    assert [line for line in lines if re.search(r"[a-z0-9)`*_]\. [A-Z`*_]", line)] == []


def test_settings_table_is_that_of_the_code() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| `([^`]+)` \| \w", (REFERENCE / "settings.md").read_text(), re.MULTILINE)
    assert [key for key, _ in rows] == list(Conf.__annotations__)
    for key, default in rows:
        with override_settings(FENCED_LOCKS={}):
            from_code = getattr(conf, key)
        with override_settings(FENCED_LOCKS={key: eval(default, {"timedelta": timedelta})}):
            assert getattr(conf, key) == from_code, key


def test_each_system_check_has_a_heading() -> None:
    modules = Path(checks.__file__).parent.glob("*.py")
    in_code = {found for module in modules for found in re.findall(r"id=\"(fenced_locks\.\w+)", module.read_text())}
    page = (REFERENCE / "checks.md").read_text()
    assert re.findall(r"^### `(fenced_locks\.\w+)`", page, re.MULTILINE) == sorted(in_code, key=lambda name: name[-3:])


def test_log_records_are_those_of_the_code() -> None:
    page = (REFERENCE / "logging.md").read_text()
    assert re.findall(r"^\| `(fence_\w+)` \|", page, re.MULTILINE) == list(logs.KEYS)
    package = Path(fenced_locks.__file__).parent
    loggers = {
        ".".join(("fenced_locks", *path.relative_to(package).with_suffix("").parts))
        for path in package.rglob("*.py")
        if "logging.getLogger(__name__)" in path.read_text()
    }
    assert set(re.findall(r"^\| `(fenced_locks\.[\w.]+)` \|", page, re.MULTILINE)) == loggers


def test_error_tree_has_every_error() -> None:
    """The tree in the docstring is the page of the docs, too."""
    shown = re.findall(r"── (\w+) +(?:\[([\w.]+)\])?", exceptions.__doc__ or "")
    errors = [name for name in fenced_locks.__all__ if hasattr(exceptions, name)]
    assert {name for name, _ in shown} == set(errors) - {"FencedLockError"}
    for name, base in shown:
        bases = {f"{cls.__module__}.{cls.__name__}" for cls in getattr(exceptions, name).__mro__}
        assert not base or base in bases, name


def test_reference_has_every_exported_name() -> None:
    errors = {name for name in fenced_locks.__all__ if hasattr(exceptions, name)}
    shown = re.findall(r"^::: fenced_locks\.(\w+)$", (REFERENCE / "api.md").read_text(), re.MULTILINE)
    assert set(fenced_locks.__all__) - errors <= set(shown)
