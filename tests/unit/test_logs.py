"""Log records carry what they tell as values, too, under names that are kept."""

import ast
import logging
from pathlib import Path

import fenced_locks
from fenced_locks import logs

PACKAGE = Path(fenced_locks.__file__).parent
LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
# What is about a loop or a row, or about several resources.
OF_NO_RESOURCE = {
    "loops.py": 1,
    "stale_writes.py": 1,
    "locks/awaiting.py": 1,
    "locks/async_renewal.py": 1,
}


def calls():
    """Yield (module, call) of every log call in the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if name.removeprefix("_log.") in LEVELS and name.startswith("_log."):
                yield path.relative_to(PACKAGE).as_posix(), node


def abouts():
    """Yield (module, call) of every ``about(...)`` in the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("about", "_about"):
                yield path.relative_to(PACKAGE).as_posix(), node


def test_every_log_call_carries_values():
    found = list(calls())
    assert len(found) > 15
    assert [(module, call.lineno) for module, call in found if "extra" not in {k.arg for k in call.keywords}] == []


def test_all_but_a_few_name_a_resource():
    of_none = [module for module, call in abouts() if ast.unparse(call.args[0]) == "None"]
    assert {module: of_none.count(module) for module in of_none} == OF_NO_RESOURCE


def test_only_documented_names_are_used():
    used = {f"fence_{keyword.arg}" for _, call in abouts() for keyword in call.keywords if keyword.arg}
    assert used | {"fence_resource"} == set(logs.KEYS)


def test_no_name_is_one_of_loggings_own():
    record = logging.getLogger("x").makeRecord("x", logging.INFO, "f", 1, "m", (), None, extra=logs.about("order:1"))
    assert record.fence_resource == "order:1"
    own = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
    assert not own & set(logs.KEYS)


def test_each_module_logs_under_its_own_name():
    for module in {module for module, _ in calls()}:
        assert "_log = logging.getLogger(__name__)" in (PACKAGE / module).read_text(), module
