"""A module imports only from floors below its own, and the package root imports no models."""

import ast
import subprocess
import sys
from pathlib import Path

import fenced_locks

PACKAGE = Path(fenced_locks.__file__).parent

FLOORS = {
    "arguments": 0, "async_clients": 0, "awaits": 0, "checks": 0, "clock": 0, "exceptions": 0, "globs": 0, "keys": 0,
    "logs": 0, "texts": 0, "durations": 0.1, "conf": 1, "loops": 1, "nesting": 1, "scripts": 1, "signals": 1,
    "triggers.base": 1, "typed": 1,
    "plans": 1.1, "triggers.mysql": 1.1, "triggers.postgresql": 1.1, "triggers.sqlite": 1.1, "stale_writes": 1.2,
    "triggers": 1.2, "refusals": 1.3, "connections": 2, "fields": 2, "locked_writes": 2, "migrations": 2, "otel": 2,
    "transactions": 2, "wire.base": 2, "wire.budget": 2, "wire.replies": 2, "guards": 2.1,
    "migrations.0001_initial": 2.1, "migrations.0002_lock": 2.1, "plain_saves": 2.1, "upserts": 2.1,
    "wire.clients": 2.1, "wire.connecting": 2.1, "querysets": 2.11, "managers": 2.12, "models": 2.2, "operations": 2.2,
    "wire.channels": 2.2, "wire.listening": 2.2, "wire.own": 2.2, "counters": 2.3, "wire.aio_line": 2.3,
    "wire.aio_listening": 2.3, "wire.aio_own": 2.3, "wire.lines": 2.3, "wire.own_reader": 2.35, "wire.aio": 2.4,
    "wire": 2.5, "issuers.base": 3, "issuers.clock": 3.1, "issuers.counter": 3.1, "issuers.database": 3.1,
    "issuers": 3.2, "locks": 4, "locks.core": 4, "locks.gate": 4, "locks.actions": 4.1, "locks.loss": 4.1,
    "locks.watching": 4.1, "locks.issuing": 4.15, "locks.steps": 4.2, "locks.advancing": 4.3, "locks.awaiting": 4.3,
    "locks.blocking": 4.3, "locks.renewal": 4.3, "locks.taking_over": 4.3, "locks.transaction": 4.3,
    "locks.waiting": 4.3, "locks.async_renewal": 4.4, "locks.holding": 4.4, "locks.pipelines": 4.4,
    "locks.together": 4.4, "locks.async_pipelines": 4.5, "locks.aio": 4.6, "locks.sync": 4.6, "tokens": 4.8,
    "reentry": 4.9, "reentrant": 4.91, "taking": 4.92, "several": 4.93, "requests": 5, "responses": 5, "shortcuts": 5,
    "templates": 5, "testing.held": 5, "testing.writes": 5, "blocks": 5.1, "calls": 5.1, "testing.isolation": 5.1,
    "testing.cases": 5.2, "testing.clock": 5.2, "testing.leases": 5.2, "testing.pytest": 5.2, "testing": 5.3,
    "comparison": 6, "decorators": 6, "reading_line": 6, "counter_scan": 6.1, "registered": 6.1, "counter_rows": 6.15,
    "inspection": 6.2, "resources": 6.3, "freeing": 6.4, "admin_paths": 7, "checks.asking": 7, "checks.models": 7,
    "checks.settings": 7, "management": 7, "management.ahead": 7, "management.commands": 7, "management.formats": 7,
    "management.leases": 7, "management.watching": 7, "admin_shown": 7.1, "checks.server": 7.1,
    "management.comparing": 7.1, "admin": 7.2, "checks.clocks": 7.2, "checks.keeping": 7.2,
    "management.commands.fence_release": 7.2, "management.commands.fence_status": 7.2, "checks.servers": 7.3,
    "apps": 8, "": 9,
}  # fmt: skip


def modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        yield ".".join(part for part in parts if part != "__init__"), path


def inner_imports(name, path):
    package = ["fenced_locks", *name.split(".")] if name else ["fenced_locks"]
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1] + (node.module.split(".") if node.module else [])
            for alias in node.names:
                full = ".".join([*base, alias.name][1:])
                yield full if full in FLOORS else ".".join(base[1:])


def test_every_module_has_its_floor():
    assert {name for name, _ in modules()} <= set(FLOORS)


def test_imports_go_downwards_only():
    upwards = [
        (name, imported)
        for name, path in modules()
        for imported in inner_imports(name, path)
        if FLOORS[imported] >= FLOORS[name]
    ]
    assert upwards == []


def test_the_root_can_be_imported_before_the_settings_and_imports_no_models():
    code = "import sys, fenced_locks; assert 'fenced_locks.models' not in sys.modules"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, cwd=PACKAGE.parent, env={"PATH": ""})
