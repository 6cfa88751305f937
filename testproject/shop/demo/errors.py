"""How long the demo waits for anything, and what it raises then."""

PATIENCE = 20.0


class DemoFailed(Exception):
    """The demo could not show what it is there to show; the message says why."""
