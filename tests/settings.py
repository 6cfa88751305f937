"""
Django's settings for the tests.

Importing them starts nothing: the fixtures in `conftest.py` start the servers and fill in their addresses.
A process that a test starts finds Redis and SQLite through `REDIS_URL` and `SQLITE_PATH`.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import servers

SECRET_KEY = "for tests only"
USE_TZ = True
ROOT_URLCONF = "tests.urls"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "fenced_locks",
    "shop",
    "tests.app",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

_REDIS = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0")
CACHES: dict[str, dict[str, Any]] = {
    "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": _REDIS},
    "plain": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": _REDIS},
}

DATABASES: dict[str, dict[str, Any]] = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SQLITE_PATH", ":memory:"),
        # Nobody needs a test database to survive a power cut.
        "OPTIONS": {"timeout": 20, "init_command": "PRAGMA synchronous=OFF"},
        "TEST": {},
    },
}
# The addresses are filled in when the first test asks for them.
if servers.has_postgres():
    DATABASES["postgres"] = {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "TEST": {}}
if servers.has_mariadb():
    DATABASES["mariadb"] = {"ENGINE": "django.db.backends.mysql", "NAME": "fenced", "TEST": {}}
    if importlib.util.find_spec("MySQLdb") is None:
        # Pure Python, so that the tests need nothing to be compiled.
        importlib.import_module("pymysql").install_as_MySQLdb()

MIGRATION_MODULES = {"app": None}
FENCED_LOCKS: dict[str, Any] = {}
