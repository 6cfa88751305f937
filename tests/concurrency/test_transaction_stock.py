"""A stock counter that twenty processes sell from, over a network that loses replies."""

import multiprocessing
import random
from contextlib import suppress

import pytest
import redis

from fenced_locks import FencedLock, LeaseLost, LockNotAcquired, OutcomeUnknown, TransactionConflict
from tests.transactions import Awaiting, Blocking, sell

PROCESSES = 20
STOCK = 200
# Of a hundred messages so many are lost, and so many replies.
LOST = 2

# Its children have everything imported.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([__name__])


class Lottery:
    """Matches some commands; each is drawn once, however many faults are meant for it."""

    def __init__(self, seed):
        self._random = random.Random(seed)
        self._command, self._drawn = None, False

    def __call__(self, command):
        if command is not self._command:
            lossy = command[0].upper() in (b"WATCH", b"GET", b"MULTI", b"SET", b"RPUSH", b"EXEC")
            self._command, self._drawn = command, lossy and self._random.randrange(100) < LOST
        return self._drawn


def sell_one(sale):
    """Return the steps that sell one, if there is one, and note the sale."""

    def steps(pipe):
        left = int((yield pipe.get("stock")))
        if not left:
            return "sold out"
        pipe.multi()
        # Not DECR: what is written is what was read, so that nothing but the watch protects it.
        pipe.set("stock", left - 1)
        pipe.rpush("ledger", sale)
        return "sold"

    return steps


def seller(number, url, start, told):
    """Sell until there is nothing left; tell which sales were made, and of which it is not known."""
    kind = (Blocking, Awaiting)[number % 2]()
    client = kind.client(url)
    sold, unknown, tries = [], [], 0
    start.wait(60)
    try:
        while True:
            tries += 1
            sale = f"{number}:{tries}"
            # Two groups that do not exclude each other: there only the watch does.
            lock = kind.lock_class(client, f"seller:{number % 4 // 2}", timeout=20, blocking_timeout=20)
            with suppress(LockNotAcquired, LeaseLost, TransactionConflict, redis.ConnectionError, redis.TimeoutError):
                if not kind.wait(lock.acquire()):
                    continue
                try:
                    result = kind.transact(lock, sell_one(sale), "stock", value_from_callable=True)
                    if result == "sold out":
                        break
                    sold.append(sale)
                except OutcomeUnknown:
                    unknown.append(sale)
                finally:
                    kind.wait(lock.release())
        told.put((sold, unknown, None))
    except BaseException as error:
        told.put((sold, unknown, repr(error)))
        raise
    finally:
        kind.close()


@pytest.mark.timeout(240)
def test_twenty_processes_sell_a_stock_to_the_last_piece_and_no_further(proxy, r):
    r.set("stock", STOCK)
    proxy.drop_reply(Lottery(1), times=200)
    proxy.drop_request(Lottery(2), times=200)

    start, told = _context.Barrier(PROCESSES + 1), _context.Queue()
    processes = [
        _context.Process(target=seller, args=(number, proxy.url, start, told), daemon=True)
        for number in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    start.wait(60)
    reports = [told.get(timeout=200) for _ in processes]
    for process in processes:
        process.join(20)

    assert [error for _, _, error in reports if error] == []
    sold = [sale for report in reports for sale in report[0]]
    unknown = [sale for report in reports for sale in report[1]]
    ledger = [sale.decode() for sale in r.lrange("ledger", 0, -1)]
    assert int(r.get("stock")) == 0
    assert len(ledger) == STOCK
    assert len(set(ledger)) == STOCK, "a sale was made twice"
    assert set(sold) <= set(ledger), "a sale that was made is lost"
    assert set(ledger) <= set(sold) | set(unknown)
    # It was hard: the replies of sales that were made were lost.
    assert set(unknown) & set(ledger)


def test_the_ledger_knows_what_became_of_a_sale_that_is_unknown(proxy, client_factory, r):
    r.set("stock", 2)
    with FencedLock(client_factory(proxy.url), "seller", timeout=20) as lock:
        for fault in (proxy.drop_reply, proxy.drop_request):
            fault("EXEC")
            with pytest.raises(OutcomeUnknown):
                lock.transaction(Blocking().function(sell), "stock")
    assert (r.get("stock"), r.lrange("ledger", 0, -1)) == (b"1", [b"2"])
