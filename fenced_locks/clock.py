"""
The local time by which leases and waits end, in seconds; never set back.

Whoever wants to know it calls ``clock.monotonic()``, so that tests can move it for all at once.
"""

from time import monotonic

__all__ = ["monotonic"]
