"""The whole demo: both acts, the state of the locks afterwards, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from django.core.management.color import Style
from servers import ServerUnavailable

from shop.demo.claims import EARLIER, NEWER, Outcome, broken_fenced_claims, broken_plain_claims
from shop.demo.errors import DemoFailed
from shop.demo.scene import FENCED, LEASES, PLAIN, Scene
from shop.demo.stage import Stage
from shop.demo.timeline import Timeline

STORY = """\
Worker A takes the lease on an order and freezes: a long pause can hit any process at any moment.
Its lease ends, so worker B takes over and cancels the order. Then A wakes up and confirms it."""
LOST = "A lock alone: B cancelled order 1001 last, yet its row says confirmed. The newer write is lost."
REFUSED = "With fencing: order 1002 stays cancelled. Its row carries B's newer token, so A changed nothing."

Write = Callable[[str], object]


def perform(write: Write, style: Style) -> None:
    """
    Play both acts and print them.

    Raises:
        DemoFailed: Something that the demo claims did not happen, or it could not be played at all.
    """
    try:
        with Stage() as stage:
            _perform(stage, write, style)
    except ServerUnavailable as error:
        raise DemoFailed(str(error)) from error


def _perform(stage: Stage, write: Write, style: Style) -> None:
    write(f"{STORY}\n{stage.description}\n\n")
    plain, fenced = _play(stage, write, style)
    broken = [*broken_plain_claims(plain), *broken_fenced_claims(fenced)]
    write(style.MIGRATE_HEADING("$ python testproject/manage.py fence_status"))
    write(stage.manage("fence_status"))
    if broken:
        raise DemoFailed(f"this did not come true: {'; '.join(broken)}.")
    write("")
    write(style.ERROR(LOST))
    write(style.SUCCESS(REFUSED))


def _play(stage: Stage, write: Write, style: Style) -> Iterator[Outcome]:
    # The processes start while the tables are made; their start is no part of the story.
    a, b = (stage.worker(name, status, str(LEASES[name])) for name, status in (("A", EARLIER), ("B", NEWER)))
    stage.manage("seed")
    for worker in (a, b):
        worker.hear("ready")
    for act in (PLAIN, FENCED):
        write(style.MIGRATE_HEADING(f"{act.title}, order {act.number}"))
        yield Scene(act, stage, a, b, Timeline(write, style)).play()
        write("")
