"""
Settings of the example shop. What belongs to django-fenced-locks is marked; the rest is an ordinary small project.

`SHOP_DATABASE` and `REDIS_URL` in the environment point the shop at another SQLite file or another server.
"""

from pathlib import Path

from config import local

BASE_DIR = Path(__file__).resolve().parent.parent

SECRET_KEY = "an example has nothing to hide; a real project reads this from its environment"
DEBUG = True
ALLOWED_HOSTS: list[str] = []  # with DEBUG: localhost only

INSTALLED_APPS = [
    "fenced_locks",  # <- the app: system checks and the command `fence_status`
    "shop",  # before staticfiles, whose `runserver` it extends
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
]

# <- where the locks live: any django-redis alias (Django's own Redis cache backend works as well).
CACHES = {
    "default": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": local.redis_url(),
    }
}

# <- every key is optional.
FENCED_LOCKS = {
    "USING": "default",  # the cache alias above
    "TIMEOUT": 10,  # seconds that a lease lasts unless the lock says otherwise
    "BLOCKING_TIMEOUT": 1,  # seconds to wait for a busy resource before the answer is 423
    "MODELS": {"shop.Order": "order:<pk>", "shop.Stock": "stock:<sku>"},  # rows that the admin shows beside a lock
}

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": local.DATABASE,
        "OPTIONS": {"timeout": 10},
    }
}

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
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
    }
]

ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
STATIC_URL = "static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
