"""Put the figures of several runs side by side, for the documentation: ``python -m tests.chaos.table FILE.json…``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

_NESTED = ("excused", "violations")
_LEFT_OUT = ("lock", "issuer", "database", "seed", "seconds")


def table(runs: list[dict[str, Any]]) -> str:
    """Return a Markdown table with a column for each run."""
    flat = [_flat(run) for run in runs]
    names = list(dict.fromkeys(name for run in flat for name in run))
    head = [f"{run['issuer']}, {run['database']}" for run in runs]
    time = [f"{run['seconds'] / 60:g} min, seed {run['seed']}" for run in runs]
    rows = [["", *head], ["---", *["---:"] * len(runs)], ["length", *time]]
    rows += [[name, *(f"{run.get(name, 0):,}" for run in flat)] for name in names]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _flat(run: dict[str, Any]) -> dict[str, int]:
    found = {name: value for name, value in run.items() if name not in (*_LEFT_OUT, *_NESTED)}
    found |= {f"excused: {name}": value for name, value in run["excused"].items()}
    return found | {f"**violations: {law}**": value for law, value in run["violations"].items()}


if __name__ == "__main__":
    sys.stdout.write(table([json.loads(Path(name).read_text()) for name in sys.argv[1:]]) + "\n")
