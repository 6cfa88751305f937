"""Django's settings of the workers and of who starts them; the addresses come in environment variables."""

from __future__ import annotations

import importlib.util
import json
import os
from typing import Any

SECRET_KEY = "for tests only"
USE_TZ = True
INSTALLED_APPS = ["fenced_locks", "tests.chaos"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES: dict[str, Any] = {"default": json.loads(os.environ.get("CHAOS_DATABASE", "{}"))}
CACHES = {
    "default": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": os.environ.get("REDIS_URL", ""),
        "OPTIONS": {"SOCKET_TIMEOUT": 1.0, "SOCKET_CONNECT_TIMEOUT": 1.0},
    },
}
FENCED_LOCKS = {"ISSUER": os.environ.get("CHAOS_ISSUER", "clock")}
# A loss is no news here, and each is in the journals.
LOGGING = {"version": 1, "loggers": {"fenced_locks": {"level": "CRITICAL"}}}

if importlib.util.find_spec("MySQLdb") is None and importlib.util.find_spec("pymysql") is not None:
    importlib.import_module("pymysql").install_as_MySQLdb()
