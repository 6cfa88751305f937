"""The checker of ``tests.chaos`` finds what is wrong in histories written by hand, and nothing in right ones."""

import pytest

from tests.chaos import plans
from tests.chaos.checker import CHECKS, LAWS, check
from tests.chaos.history import SECOND, Accepted, Attempt, Fault, History, Sighting, Write, attempts_of

MS = SECOND // 1000
LEASE = 500 * MS


def grant(name, token, began, granted, ended, *, how="released", **facts):
    """An attempt on row:1; times are milliseconds, and it is given back 1 ms before it is over."""
    facts = {"worker": 1, "resource": "row:1", "lease": LEASE, "owner": f"owner of {name}", **facts}
    return Attempt(
        id=name,
        token=token,
        began=began * MS,
        granted=granted * MS,
        until=began * MS + LEASE,
        releasing=(ended - 1) * MS,
        closed=ended * MS,
        how=how,
        **facts,
    )


def wrote(attempt, base="", *, result="ok", kind="claimed"):
    attempt.writes.append(Write(f"{attempt.id}/{len(attempt.writes) + 1}", kind, base, result))
    return attempt


def accept(*writes):
    """What the trigger noted, from (write, token)."""
    entries, old_token, old_write = [], 0, ""
    for number, (write, token) in enumerate(writes, 1):
        entries.append(Accepted(number, 1, old_token, token, old_write, write))
        old_token, old_write = token, write
    return entries


def loss(began, ended):
    return Fault("flush", began * MS, ended * MS, loses=True)


def violated(history):
    return [finding.law for finding in check(history).violations]


def excused(history):
    verdict = check(history)
    assert not verdict.violations
    return sum(verdict.excused.values())


@pytest.fixture
def history():
    """A, B and C hold the row one after the other, and each writes it."""
    a = wrote(grant("a", 10, 0, 10, 100))
    b = wrote(grant("b", 20, 110, 120, 200), "a/1")
    c = wrote(grant("c", 30, 210, 220, 300), "b/1")
    return History(attempts=[a, b, c], accepted=accept(("a/1", 10), ("b/1", 20), ("c/1", 30)), resources=("row:1",))


def test_each_law_has_a_check_and_a_right_history_breaks_none(history):
    assert len(CHECKS) == len(LAWS)
    verdict = check(history)
    assert verdict.by_law() == dict.fromkeys(LAWS, 0)
    assert not verdict.excused


class TestTokens:
    def test_must_be_greater_than_those_granted_before(self, history):
        history.attempts[1].token = 40
        history.accepted = []
        for attempt in history.attempts:
            attempt.writes.clear()
        assert violated(history) == ["tokens grow"]

    def test_must_not_be_equal_even_where_no_order_is_known(self):
        assert violated(History(attempts=[grant("a", 7, 0, 300, 310), grant("b", 7, 5, 290, 291)])) == ["tokens grow"]

    def test_may_be_in_any_order_where_the_calls_overlapped(self):
        assert not violated(History(attempts=[grant("a", 8, 0, 300, 310), grant("b", 7, 299, 305, 306, lease=0)]))

    @pytest.mark.parametrize("issuer", ["clock", "database"])
    def test_no_loss_excuses_an_issuer_that_promises_more(self, issuer):
        attempts = [grant("a", 7, 0, 10, 100), grant("b", 1, 110, 120, 200)]
        assert violated(History(issuer=issuer, attempts=attempts, faults=[loss(103, 105)])) == ["tokens grow"]

    def test_a_loss_between_the_grants_excuses_the_counter(self):
        attempts = [grant("a", 7, 0, 10, 100), grant("b", 1, 110, 120, 200)]
        assert excused(History(issuer="counter", attempts=attempts, faults=[loss(103, 105)])) == 1

    @pytest.mark.parametrize("other", [loss(201, 202), loss(0, 1)])
    def test_a_loss_at_another_time_does_not(self, other):
        attempts = [grant("a", 7, 5, 10, 100), grant("b", 1, 110, 120, 200)]
        assert violated(History(issuer="counter", attempts=attempts, faults=[other])) == ["tokens grow"]

    def test_an_excused_one_does_not_hide_one_that_is_not(self):
        attempts = [grant("a", 7, 0, 10, 100), grant("b", 3, 110, 120, 200), grant("c", 2, 210, 220, 300)]
        assert violated(History(issuer="counter", attempts=attempts, faults=[loss(103, 105)])) == ["tokens grow"]


class TestRows:
    def test_never_get_a_smaller_token(self, history):
        history.accepted = accept(("a/1", 10), ("b/1", 20), ("c/1", 15))
        assert violated(history) == ["no row goes back"]

    def test_get_an_equal_token_from_the_same_holder_only(self, history):
        history.attempts[2].writes = [Write("c/1", "claim"), Write("c/2", "claimed", "c/1", "ok")]
        history.accepted = accept(("a/1", 10), ("b/1", 20), ("c/1", 30), ("c/2", 30))
        assert not violated(history)
        history.accepted = accept(("a/1", 10), ("b/1", 20), ("c/1", 20))
        history.attempts[2].writes = [Write("c/1", "claimed", "b/1", "ok")]
        assert violated(history) == ["no row goes back"]

    def test_are_not_changed_between_two_writes(self, history):
        history.accepted[2].old_token = 19
        assert violated(history) == ["no row goes back"]

    def test_never_take_a_write_of_an_earlier_holder_after_one_of_a_later(self, history):
        history.accepted = accept(("b/1", 20), ("a/1", 21), ("c/1", 30))
        history.attempts[1].writes[0].base, history.attempts[0].writes[0].base = "", "b/1"
        history.attempts[2].writes[0].base = "a/1"
        assert violated(history) == ["no stale write accepted"]

    def test_take_one_that_a_lost_counter_lets_through(self, history):
        a, b, c = history.attempts
        a.token, b.token, c.token = 10, 1, 30
        history.issuer, history.faults = "counter", [loss(101, 105)]
        history.accepted = accept(("b/1", 1), ("a/1", 10), ("c/1", 30))
        b.writes[0].base, a.writes[0].base, c.writes[0].base = "", "b/1", "a/1"
        assert excused(history) == 2

    def test_of_a_plain_lock_are_compared_by_time(self, history):
        history.fenced = False
        for attempt in history.attempts:
            attempt.token = None
        history.accepted = accept(("b/1", 0), ("a/1", 0), ("c/1", 0))
        assert set(violated(history)) == {"no stale write accepted", "no accepted write lost"}


class TestWrites:
    @pytest.mark.parametrize(
        ("result", "times"), [("ok", 0), ("ok", 2), ("refused", 1), ("unknown", 2)], ids=lambda value: str(value)
    )
    def test_are_accepted_as_their_worker_was_told(self, result, times):
        attempt = grant("a", 10, 0, 10, 100)
        attempt.writes = [Write("a/1", "claim", None, result)]
        history = History(attempts=[attempt], accepted=accept(*[("a/1", 10)] * times))
        assert violated(history) == ["no accepted write lost"]

    @pytest.mark.parametrize("times", [0, 1])
    def test_of_unknown_outcome_are_accepted_once_or_not(self, times):
        attempt = wrote(grant("a", 10, 0, 10, 100), result="unknown")
        assert not violated(History(attempts=[attempt], accepted=accept(*[("a/1", 10)] * times)))

    def test_come_from_somebody(self, history):
        history.accepted = accept(("a/1", 10), ("b/1", 20), ("c/1", 30), ("x/1", 40))
        assert violated(history) == ["no accepted write lost"]

    def test_replace_what_their_worker_has_read(self, history):
        history.attempts[2].writes[0].base = "a/1"
        assert violated(history) == ["no accepted write lost"]

    def test_may_replace_a_late_one_where_the_row_was_not_claimed(self, history):
        history.attempts[2].writes[0].base, history.attempts[2].writes[0].kind = "a/1", "unclaimed"
        assert excused(history) == 1
        history.fenced = False
        assert violated(history) == ["no accepted write lost"]


class TestHolders:
    def test_exclude_each_other(self):
        attempts = [grant("a", 1, 0, 10, 600, how="lost"), grant("b", 2, 100, 120, 200)]
        assert violated(History(attempts=attempts)) == ["mutual exclusion outside faults"]

    def test_hold_nothing_beyond_their_lease(self):
        attempts = [grant("a", 1, 0, 10, 900, how="lost"), grant("b", 2, 100, 520, 800)]
        assert not violated(History(attempts=attempts))

    def test_hold_what_was_made_longer(self):
        a = grant("a", 1, 0, 10, 900, keeps=True)
        a.until = 890 * MS
        history = History(attempts=[a, grant("b", 2, 100, 520, 800)])
        assert violated(history)[0] == "mutual exclusion outside faults"

    def test_are_two_where_redis_lost_the_key(self):
        attempts = [grant("a", 1, 0, 10, 150, how="lost"), grant("b", 2, 100, 120, 200)]
        assert excused(History(attempts=attempts, faults=[loss(50, 60)])) == 1

    def test_are_not_excused_by_a_loss_before_or_after(self):
        attempts = [grant("a", 1, 20, 30, 600, how="lost"), grant("b", 2, 100, 120, 200)]
        for fault in (loss(0, 19), loss(121, 130), Fault("fill", 50 * MS, 60 * MS)):
            assert violated(History(attempts=attempts, faults=[fault])) == ["mutual exclusion outside faults"]

    def test_cannot_release_what_another_was_granted(self):
        a = grant("a", 1, 0, 10, 900)
        history = History(attempts=[a, grant("b", 2, 520, 530, 560)])
        assert violated(history) == ["only the owner"]
        a.how = "lost"
        assert not violated(history)

    def test_lose_nothing_before_its_end(self):
        history = History(attempts=[grant("a", 1, 0, 10, 490, how="lost")])
        assert violated(history) == ["only the owner"]
        history.attempts[0].closed = 510 * MS
        assert not violated(history)
        history.attempts[0].closed, history.faults = 490 * MS, [loss(100, 101)]
        assert not violated(history)

    def test_cannot_keep_what_another_was_granted(self):
        a = grant("a", 1, 0, 10, 900, how="lost")
        a.extended = [700 * MS]
        history = History(attempts=[a, grant("b", 2, 520, 530, 560)])
        assert violated(history) == ["only the owner"]
        assert excused(History(attempts=history.attempts, faults=[loss(300, 301)])) == 0


def seen(owner, first, last, **facts):
    return Sighting("row:1", owner, first * MS, last * MS, **facts)


class TestLeases:
    @pytest.mark.parametrize(
        "sighting",
        [
            seen("nobody knows", 0, 700),
            seen("ticket:of:x", 0, 700),
            seen("owner of a", 10, 101),
            seen("nobody knows", 0, 1, endless=True),
        ],
        ids=["unknown", "ticket", "released", "endless"],
    )
    def test_end(self, sighting):
        history = History(attempts=[grant("a", 1, 0, 10, 100)], sightings=[sighting])
        assert violated(history) == ["no lease outlives its end"]

    @pytest.mark.parametrize(
        "sighting",
        [seen("nobody knows", 0, 590), seen("ticket:of:x", 0, 590), seen("owner of a", 10, 99)],
        ids=["unknown", "ticket", "held"],
    )
    def test_are_there_until_then(self, sighting):
        assert not violated(History(attempts=[grant("a", 1, 0, 10, 100)], sightings=[sighting]))

    def test_of_the_dead_end_too(self):
        a = grant("a", 1, 0, 10, 100, how="open", keeps=True)
        a.releasing = a.closed = None
        a.died = 300 * MS
        for last, found in ((890, []), (910, ["no lease outlives its end"])):
            assert violated(History(attempts=[a], sightings=[seen("owner of a", 10, last)])) == found

    def test_that_were_given_back_may_return_with_old_data_for_the_rest_of_their_time(self):
        a = grant("a", 1, 0, 10, 100)
        assert excused(History(attempts=[a], faults=[loss(50, 110)], sightings=[seen("owner of a", 10, 400)])) == 1
        late = History(attempts=[a], faults=[loss(50, 110)], sightings=[seen("owner of a", 10, 700)])
        assert violated(late) == ["no lease outlives its end"]


def test_an_error_that_is_not_documented_is_a_violation():
    history = History(attempts=[grant("a", 1, 0, 10, 100, how="broke", error="KeyError: 'x'")])
    assert violated(history) == ["errors are of the documented kinds"]


def test_every_resource_is_granted_again_after_the_last_fault():
    history = History(attempts=[grant("a", 1, 0, 10, 100)], healed=20 * MS, resources=("row:1",))
    assert violated(history) == ["it goes on after the faults"]
    history.healed = 9 * MS
    assert not violated(history)


def test_records_of_a_killed_worker_leave_its_last_attempt_open():
    began = {"event": "began", "at": 1, "worker": 3, "resource": "row:1", "lease": 5, "style": "block", "keeps": False}
    records = [
        {**began, "op": "a"},
        {"event": "granted", "at": 2, "op": "a", "token": 7, "owner": "me", "until": 6},
        {"event": "held", "at": 3, "op": "a", "since": 2, "until": 9},
        {"event": "writing", "at": 3, "op": "a", "write": "a/1", "kind": "claim", "base": None},
        {"event": "wrote", "at": 4, "op": "a", "write": "a/1", "result": "ok"},
        {"event": "releasing", "at": 5, "op": "a", "until": 9},
        {"event": "closed", "at": 6, "op": "a", "how": "released", "error": ""},
        {**began, "op": "b", "at": 7},
        {"event": "granted", "at": 8, "op": "b", "token": 8, "owner": "me", "until": 12},
        {"event": "writing", "at": 9, "op": "b", "write": "b/1", "kind": "unclaimed", "base": "a/1"},
    ]
    a, b = attempts_of(records)
    assert (a.token, a.held_until, a.extended, a.how, a.writes[0].result) == (7, 5, [2], "released", "ok")
    assert (b.granted, b.held_until, b.how, b.writes[0].result, b.writes[0].base) == (8, 12, "open", "unknown", "a/1")


def test_the_seed_alone_makes_the_schedules_and_the_choices():
    def everything(seed):
        plan = plans.plans(seed, 3, 1)
        choices = [next(plan) for _ in range(20)]
        weather = plans.processes(seed, 60, 16), plans.network(seed, 60), plans.server(seed, 60, repairs=True)
        return choices, [list(steps) for steps in weather]

    assert everything(7) == everything(7) != everything(8)
