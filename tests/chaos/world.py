"""A run: everything is started, three schedules hurt it, and everything is ended again."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from django.conf import settings

from tests.proxy_faults import Fault

from . import databases, plans
from .crew import Crew
from .history import History, load
from .journal import Journal
from .redis_world import RedisWorld
from .sightings import Lookout

# Beyond every lease, claim window and pending wait.
HEAL_SECONDS = 6.0
_TICK = 0.02


@dataclass(frozen=True)
class Options:
    """What a run is made of."""

    seconds: float
    seed: int
    lock: str = "fenced"
    issuer: str = "clock"
    database: str = "sqlite"
    workers: int = 16


@dataclass
class Outcome:
    """A history, and what is known beside it: faults that could not be made, and what should not have happened."""

    history: History
    network: dict[str, int]
    repairs: int
    missed: list[str]
    broken: list[str]


class World:
    """The parts of a run. Use as a context manager: whatever happens, nothing is left behind."""

    def __init__(self, options: Options, directory: Path, exits: contextlib.ExitStack) -> None:
        self.options, self.directory = options, directory
        self.broken: list[str] = []
        self.missed: list[str] = []
        self.repairs = 0
        self._network: list[tuple[str, Fault]] = []
        self._journal = Journal(directory / "world.jsonl")
        exits.callback(self._journal.close)
        self.redis = RedisWorld(self._journal)
        exits.callback(self.redis.stop)
        os.environ["REDIS_URL"] = settings.CACHES["default"]["LOCATION"] = self.redis.proxy.url
        plain = options.lock != "fenced"
        self.crew = Crew(options.workers, directory, self._journal, options.seed, plain=plain)
        exits.callback(self.crew.end)
        self._lookout = Lookout(self.redis, self._journal)

    def run(self) -> Outcome:
        """Let it all happen, heal, and return the history."""
        start, options = time.monotonic(), self.options
        lanes = [
            self._lane(start, plans.network(options.seed, options.seconds), self._hurt_network),
            self._lane(
                start,
                plans.server(options.seed, options.seconds, repairs=options.issuer == "counter"),
                self._hurt_server,
            ),
        ]
        self._hurt_processes(start)
        for lane in lanes:
            lane.join(120)
        self.crew.thaw(everybody=True)
        healed = self._journal.write("healed")
        self._wait(healed / 1e9 + HEAL_SECONDS)
        self.broken += [f"{name} ended by itself" for name in self.crew.dead()]
        self.crew.finish()
        self._lookout.stop()
        return self._outcome()

    def _outcome(self) -> Outcome:
        history = History(issuer=self.options.issuer, fenced=self.options.lock == "fenced", resources=plans.RESOURCES)
        load(self.directory, history)
        # A server may still be busy with what a killed worker had sent.
        time.sleep(0.5)
        history.accepted = databases.accepted()
        network: dict[str, int] = {}
        for kind, fault in self._network:
            network[kind] = network.get(kind, 0) + fault.happened.is_set()
        return Outcome(history, network, self.repairs, self.missed, self.broken)

    def _hurt_processes(self, start: float) -> None:
        for step in plans.processes(self.options.seed, self.options.seconds, self.options.workers):
            self._wait(start + step.at)
            if step.kind == "kill":
                self.crew.kill(step.worker)
            else:
                self.crew.freeze(step.worker, step.seconds)
        self._wait(start + self.options.seconds)

    def _wait(self, until: float) -> None:
        while time.monotonic() < until:
            self.crew.tend()
            time.sleep(_TICK)

    def _hurt_server(self, step: plans.Step) -> None:
        if step.kind == "repair":
            databases.repair()
            self.repairs += 1
            return
        getattr(self.redis, step.kind)(step.how, step.seconds)

    def _hurt_network(self, step: plans.Step) -> None:
        proxy = self.redis.proxy
        proxy.forget()
        match step.kind:
            case "disconnect":
                proxy.disconnect()
                fault = Fault()
                fault.happened.set()
            case "mute":
                proxy.mute()
                time.sleep(step.seconds)
                proxy.unmute()
                fault = Fault()
                fault.happened.set()
            case "cut_reply":
                fault = proxy.cut_reply(step.match, after=random.Random(step.at).randrange(1, 6))
            case "delay_reply" | "delay_request":
                fault = getattr(proxy, step.kind)(step.seconds, step.match)
            case _:
                fault = getattr(proxy, step.kind)(step.match)
        self._network.append((step.kind, fault))

    def _lane(self, start: float, steps: Iterator[plans.Step], act: Callable[[plans.Step], None]) -> threading.Thread:
        def run() -> None:
            for step in steps:
                time.sleep(max(0.0, start + step.at - time.monotonic()))
                try:
                    act(step)
                except Exception as error:  # noqa: BLE001 - reported, as a run without its faults proves nothing
                    self.missed.append(f"{step} failed: {error!r}")

        lane = threading.Thread(target=run, name=act.__name__, daemon=True)
        lane.start()
        return lane


def run(options: Options, directory: Path) -> Outcome:
    """Run chaos in a directory, which gets the journals, and return what happened."""
    import json

    import django

    with contextlib.ExitStack() as exits:
        entry = exits.enter_context(databases.database(options.database, directory))
        os.environ["CHAOS_DATABASE"] = json.dumps(entry)
        os.environ["CHAOS_ISSUER"] = options.issuer
        os.environ["DJANGO_SETTINGS_MODULE"] = "tests.chaos.settings"
        (directory / "options.json").write_text(json.dumps(asdict(options)))
        django.setup()
        databases.prepare()
        outcome = World(options, directory, exits).run()
        _close_database()
        return outcome


def _close_database() -> None:
    from django.db import connections

    connections.close_all()
