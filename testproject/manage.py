#!/usr/bin/env python
"""Commands of the example project. `runserver` serves the shop, `demo` shows a stale write being refused."""

import os
import sys
from pathlib import Path

from django.core.management import execute_from_command_line


def main() -> None:
    """Run a command; `runserver` brings a private Redis server unless `REDIS_URL` names one."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    # Last, so that an installed package wins and a plain clone works all the same.
    sys.path.append(str(Path(__file__).resolve().parent.parent))
    if sys.argv[1:2] == ["runserver"]:
        # Before the settings are read, and inherited by the reloader's second process.
        from config import local

        local.start_redis()
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
