"""``python -m tests.chaos --minutes 1``; see "What was proven" in the documentation."""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
from pathlib import Path

from . import report, world
from .checker import Verdict, check
from .databases import NAMES
from .folder import Folder

_SHOWN = 20


def main() -> int:
    """Run, print the figures, keep the history of a violation; return the exit code."""
    arguments = _arguments()
    # So that the clean-up runs.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    seed = random.SystemRandom().randrange(1_000_000) if arguments.seed is None else arguments.seed
    options = world.Options(
        seconds=arguments.minutes * 60,
        seed=seed,
        lock=arguments.lock,
        issuer=arguments.issuer,
        database=arguments.database,
        workers=arguments.workers,
    )
    print(f"{arguments.minutes:g} min, --seed {seed} --lock {options.lock} --issuer {options.issuer}", flush=True)
    with Folder() as folder:
        directory = folder.directory
        outcome = world.run(options, directory)
        verdict = check(outcome.history)
        numbers = report.figures(options, outcome, verdict)
        problems = report.vacuous(outcome, numbers)
        print(report.text(numbers))
        if arguments.json:
            arguments.json.write_text(json.dumps(numbers, indent=1))
        for finding in verdict.violations[:_SHOWN]:
            print(f"VIOLATION {finding.law}: {finding.subject}: {finding.text} {' '.join(finding.attempts)}")
        for problem in problems:
            print(f"THIS RUN PROVES NOTHING: {problem}")
        if problems or (verdict.violations and not arguments.expect_violations):
            print(f"The history is in {_keep(directory, arguments.out, seed, verdict)}")
        return 1 if problems or bool(verdict.violations) != arguments.expect_violations else 0


def _keep(directory: Path, out: Path, seed: int, verdict: Verdict) -> Path:
    kept = out / f"chaos-{seed}"
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(directory, kept)
    lines = [f"{finding.law}: {finding.subject}: {finding.text} {finding.attempts}" for finding in verdict.violations]
    (kept / "violations.txt").write_text("\n".join(lines) + "\n")
    return kept.resolve()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, help="the one of an earlier run; by default a new one, which is printed")
    parser.add_argument("--lock", choices=("fenced", "redis-py"), default="fenced")
    parser.add_argument("--issuer", choices=("clock", "counter", "database"), default="clock")
    parser.add_argument("--database", choices=NAMES, default="sqlite")
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--out", type=Path, default=Path(), help="where the history of a violation is kept")
    parser.add_argument(
        "--expect-violations", action="store_true", help="succeed if there are some: checks the checker"
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
