from datetime import timedelta

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured

from fenced_locks.conf import conf


def found(settings, **given):
    settings.FENCED_LOCKS = given
    return [message for message in run_checks(tags=["fenced_locks"]) if message.id.startswith("fenced_locks.E")]


def test_defaults(settings):
    del settings.FENCED_LOCKS
    assert conf.USING == "default"
    assert conf.KEY_PREFIX == ""
    assert (conf.TIMEOUT, conf.BLOCKING_TIMEOUT) == (30, 5)
    assert conf.ISSUER == "clock"
    assert conf.COUNTER_RETENTION == 7 * 24 * 3600


def test_read_at_access_time(settings):
    settings.FENCED_LOCKS = {"TIMEOUT": timedelta(minutes=1)}
    assert conf.TIMEOUT == 60
    settings.FENCED_LOCKS = {"TIMEOUT": None}
    assert conf.TIMEOUT is None


def test_an_unknown_key_is_an_error_with_a_suggestion(settings):
    (error,) = found(settings, TIMEOUTS=3)
    assert error.id == "fenced_locks.E001"
    assert "unknown key 'TIMEOUTS'" in error.msg
    assert error.hint == "Did you mean 'TIMEOUT'?"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("TIMEOUT", 0), ("TIMEOUT", "30"), ("BLOCKING_TIMEOUT", -1), ("KEY_PREFIX", None), ("KEY_PREFIX", b"x"),
        ("COUNTER_RETENTION", None), ("COUNTER_RETENTION", 0), ("COUNTER_RETENTION", 10**400),
        ("USING", ""), ("USING", 7),
        ("MODELS", None), ("MODELS", ["shop.Order"]), ("MODELS", {"shop.Order": 7}), ("MODELS", {7: "order:<pk>"}),
    ],
)  # fmt: skip
def test_a_bad_value_is_an_error_of_the_check_and_when_read(settings, key, value):
    messages = found(settings, **{key: value})
    assert "fenced_locks.E001" in [message.id for message in messages]
    shown = next(iter(value.values()), value) if isinstance(value, dict) else value
    assert repr(shown) in messages[0].msg or "empty" in messages[0].msg or key == "MODELS"
    with pytest.raises(ImproperlyConfigured, match=key):
        getattr(conf, key)


def test_a_setting_that_is_no_dict_is_an_error(settings):
    settings.FENCED_LOCKS = ["TIMEOUT"]
    ids = [message.id for message in run_checks(tags=["fenced_locks"])]
    assert "fenced_locks.E001" in ids


@pytest.mark.parametrize(
    ("models", "named"),
    [
        ({"app.Ordre": "order:<pk>"}, "app.Ordre"), ({"Order": "order:<pk>"}, "Order"),
        ({"app.Item": "item:<pk>"}, "fence_token"), ({"app.Order": "order:<number>"}, "number"),
        ({"app.Order": "order:<customer.nme>"}, "nme"), ({"app.Order": "order:<pk"}, "balanced"),
    ],
)  # fmt: skip
def test_a_model_that_cannot_be_used_is_an_error(settings, models, named):
    (error,) = found(settings, MODELS={"app.Stock": "stock:<sku>", **models})
    assert error.id == "fenced_locks.E007"
    assert named in error.msg


@pytest.mark.parametrize("spec", ["clok", "no.such.module", 7, "datetime.timedelta"])
def test_an_issuer_that_is_none_is_an_error(settings, spec):
    (error,) = found(settings, ISSUER=spec)
    assert error.id == "fenced_locks.E003"


def test_an_alias_that_is_missing_or_has_no_redis_client_is_an_error(settings):
    (error,) = found(settings, USING="elsewhere")
    assert error.id == "fenced_locks.E002"
    assert error.msg == "cache alias 'elsewhere' for locks is not in CACHES, which has 'default', 'plain'."
    assert "FENCED_LOCKS['USING']" in error.hint
    settings.CACHES = {**settings.CACHES, "memory": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    (error,) = found(settings, USING="memory")
    assert error.id == "fenced_locks.E002"
    assert "LocMemCache has no Redis client" in error.msg
    assert "FENCED_LOCKS['USING']" in error.hint


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": "localhost:6379"},
        {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://localhost:port/0"},
        {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://x", "OPTIONS": {"CLIENT_CLASS": "no.such"}},
    ],
)
def test_a_broken_alias_is_an_error_and_no_traceback(settings, broken):
    settings.CACHES = {**settings.CACHES, "broken": broken}
    (error,) = found(settings, USING="broken")
    assert error.id == "fenced_locks.E002"
    assert error.hint == "Look at BACKEND, LOCATION and OPTIONS of CACHES['broken']."


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"CLIENT_CLASS": "django_redis.client.ShardClient"}, "ShardClient has no single server"),
        ({"REDIS_CLIENT_CLASS": "redis.asyncio.Redis"}, "redis.asyncio.client.Redis does not block"),
        ({"REDIS_CLIENT_CLASS": "redis.cluster.RedisCluster"}, "RedisCluster requires at least one node"),
    ],
)
def test_a_client_class_that_cannot_keep_locks_is_an_error(settings, options, reason):
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0", "OPTIONS": options}
    settings.CACHES = {**settings.CACHES, "odd": cache}
    (error,) = found(settings, USING="odd")
    assert error.id == "fenced_locks.E005"
    assert reason in error.msg


@pytest.mark.parametrize("client", ["DefaultClient", "HerdClient"])
def test_other_client_classes_are_fine(settings, client):
    options = {"CLIENT_CLASS": f"django_redis.client.{client}"}
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0", "OPTIONS": options}
    settings.CACHES = {**settings.CACHES, "fine": cache}
    assert found(settings, USING="fine") == []


@pytest.mark.parametrize("prefix", ["fence:", "a}b"])
def test_a_prefix_that_no_lock_can_have_is_an_error(settings, prefix):
    (error,) = found(settings, KEY_PREFIX=prefix)
    assert error.id == "fenced_locks.E001"


def test_the_settings_of_the_tests_are_clean(settings):
    assert found(settings) == []
