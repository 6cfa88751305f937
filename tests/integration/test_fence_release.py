"""`manage.py fence_release` frees what it says it frees, asks before it does, and its exit codes fit scripts."""

from __future__ import annotations

import io

import pytest
from django.core.management import CommandError, call_command

from fenced_locks import FencedLock
from tests.app.models import Order

pytestmark = pytest.mark.django_db


def fence_release(*arguments, **options):
    """Return the exit code and what was written."""
    out = io.StringIO()
    try:
        call_command("fence_release", *arguments, stdout=out, stderr=out, **options)
    except CommandError as error:
        return error.returncode, f"{out.getvalue()}{error}\n"
    return 0, out.getvalue()


@pytest.fixture
def locks(r):
    taken = {}
    for name in ("order:1", "order:2", "stock:7"):
        taken[name] = FencedLock(r, name, timeout=30)
        taken[name].acquire()
    return taken


def held(locks):
    return [name for name, lock in locks.items() if lock.owned()]


@pytest.fixture
def answer(monkeypatch):
    def give(text):
        monkeypatch.setattr("sys.stdin", io.StringIO(text))

    give("")
    return give


class TestWhatIsFreed:
    def test_what_is_named(self, locks):
        code, out = fence_release("order:1", "stock:7", yes=True)
        assert code == 0
        assert held(locks) == ["order:2"]
        assert f"order:1 is held by {locks['order:1'].owner_id}, " in out
        assert "order:1 was freed." in out

    def test_what_matches(self, locks):
        assert fence_release(pattern="order:*", yes=True)[0] == 0
        assert held(locks) == ["stock:7"]

    def test_what_an_owner_holds(self, locks, r):
        r.mset({"fence:{other}": 1, "other": "web-1:7:0123"})
        code, out = fence_release(owner="web-1:*", yes=True)
        assert (code, held(locks)) == (0, ["order:1", "order:2", "stock:7"])
        assert not r.exists("other")
        assert "order" not in out

    def test_a_name_is_taken_as_it_is_and_each_lease_once(self, locks, r):
        with FencedLock(r, "order:*", timeout=30, raise_on_release_error=False):
            code, out = fence_release("order:*", "order:*", pattern="order:[*]", yes=True)
            assert (code, out.count("was freed")) == (0, 1)
        assert len(held(locks)) == 3

    def test_under_the_prefix(self, locks, r, settings):
        settings.FENCED_LOCKS = {"KEY_PREFIX": "order:"}
        assert fence_release("1", yes=True)[0] == 0
        assert held(locks) == ["order:2", "stock:7"]

    def test_rows_of_registered_models_are_outdated(self, locks, settings):
        settings.FENCED_LOCKS = {"MODELS": {"app.Order": "order:<pk>"}}
        Order.objects.create(pk=1)
        token = locks["order:1"].fence_token
        assert "order:1 was freed, 1 row with the newer token." in fence_release("order:1", yes=True)[1]
        assert not Order.objects.filter(pk=1).fenced_update(token)


class TestAsking:
    @pytest.mark.parametrize("reply", ["", "n\n", "\n", "x\n"])
    def test_nothing_is_freed_without_a_yes(self, locks, answer, reply):
        answer(reply)
        code, out = fence_release("order:1")
        assert (code, len(held(locks))) == (1, 3)
        assert "Free 1 lease? [y/N] " in out
        assert "Nothing was freed." in out

    @pytest.mark.parametrize("reply", ["y\n", "YES\n"])
    def test_a_yes_frees(self, locks, answer, reply):
        answer(reply)
        assert fence_release("order:1")[0] == 0
        assert held(locks) == ["order:2", "stock:7"]

    def test_a_dry_run_frees_nothing_even_with_yes(self, locks):
        code, out = fence_release(pattern="*", dry_run=True, yes=True)
        assert (code, len(held(locks))) == (0, 3)
        assert "3 leases would be freed." in out


class TestExitCodes:
    def test_0_if_there_is_nothing_to_free(self, r):
        assert fence_release("order:1", yes=True) == (0, "order:1 is free.\nNothing to free.\n")
        assert fence_release(pattern="order:*", yes=True)[0] == 0

    def test_0_for_a_lock_that_is_handed_over_which_is_left_alone(self, r):
        r.mset({"fence:{order:1}": 5, "order:1": "ticket:web:1:abc:web:2:def"})
        code, out = fence_release("order:1", pattern="*", yes=True)
        assert code == 0
        assert "order:1 is left alone: about to be taken by a waiter." in out
        assert r.exists("order:1")

    def test_1_for_what_cannot_be_freed(self, r):
        r.hset("order:1", "a", 1)
        r.set("cache:1", "a value of somebody else")
        code, out = fence_release("order:1", "cache:1", yes=True)
        assert code == 1
        assert "2 leases left" in out
        assert r.exists("order:1", "cache:1") == 2
        assert fence_release("order:1", "cache:1", dry_run=True)[0] == 0

    def test_keys_that_are_no_lock_do_not_keep_others_from_being_freed(self, locks, r):
        r.mset({"fence:{fence:{x}}": 1, "fence:{wake:x}": 1, "wake:x": "web-1:1:x"})
        r.mset({"fence:{a}": 1, "a": "", "fence:{b}": "no number", "b": "web-1:1:x", "fence:{z}": 1, "z": "web-1:1:x"})
        code, out = fence_release(pattern="*", yes=True)
        assert (code, held(locks)) == (1, [])
        assert "wake:x was not freed: name of the lock must not start with 'wake:'" in out
        assert "b was freed, but no fence token" in out
        assert [name for name in ("wake:x", "a", "b", "z") if r.exists(name)] == ["wake:x", "a"]
        assert "a is left alone: lock key is empty." in fence_release("a")[1]

    def test_1_if_somebody_else_has_it_by_now(self, locks, r, monkeypatch):
        lock = locks["order:1"]

        def change_hands(*_args, **_kwargs):
            lock.release()
            r.set("order:1", "web-2:1:x")
            return "y"

        monkeypatch.setattr("builtins.input", change_hands)
        code, out = fence_release("order:1")
        assert code == 1
        assert "order:1 was not freed" in out
        assert "it ended, the resource is held by web-2:1:x" in out
        assert "fence token 0" not in out
        assert r.get("order:1") == b"web-2:1:x"

    @pytest.mark.parametrize(
        ("arguments", "options"),
        [
            ([], {}), ([""], {}), (["a}b"], {}), (["order:1"], {"owner": "["}), ([], {"pattern": "["}),
            (["order:1"], {"using": "nowhere"}), ([], {"dry_run": True}),
            # What a script leaves empty by mistake does not stand for all.
            ([], {"owner": ""}), ([], {"pattern": ""}), ([], {"owner": "", "pattern": "*"}),
            ([], {"owner": "*", "pattern": ""}), (["order:1"], {"owner": ""}), (["order:1"], {"pattern": ""}),
            (["order:1"], {"using": ""}),
        ],
    )  # fmt: skip
    def test_2_for_a_wrong_argument(self, locks, arguments, options):
        code, _ = fence_release(*arguments, **{"yes": True, **options})
        assert (code, len(held(locks))) == (2, 3)

    def test_3_for_a_server_that_is_down(self, settings, r):
        settings.CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}}
        code, out = fence_release("order:1", yes=True)
        assert code == 3
        assert "Redis behind cache alias 'default'" in out
