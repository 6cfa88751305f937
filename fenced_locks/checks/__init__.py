"""
System checks, one function per concern. An id is never used for anything else.

Those of ``settings`` and ``models`` always run. Those of ``servers`` ask the Redis server and run on demand.
"""

from __future__ import annotations

TAG = "fenced_locks"
