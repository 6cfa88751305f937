"""Tokens by resource, and what stands in place of one token where there are several."""

import copy
import datetime
import json
import operator
import pickle

import pytest

from fenced_locks.fields import checked_token
from fenced_locks.locks.core import Lease
from fenced_locks.tokens import FenceTokens, NoSingleToken

WHY = r"no single fence token: .*'order:7', 'stock:x'.*use request\.fence_tokens\['order:7'\]"


@pytest.fixture
def none():
    return NoSingleToken(["order:7", "stock:x"], "request.fence_tokens")


@pytest.mark.parametrize(
    "use",
    [
        int,
        float,
        str,
        bool,
        hash,
        operator.index,
        "{}".format,
        "{:>5}".format,
        lambda token: f"{token}",
        lambda token: token == 5,
        lambda token: token != 5,
        lambda token: token < 5,
        lambda token: max(5, token),
        lambda token: token >= token,
        lambda token: token in {5: 6},
        lambda token: [1, 2][token],
        pickle.dumps,
        copy.copy,
        copy.deepcopy,
    ],
)
def test_every_use_is_refused_and_says_why(none, use):
    with pytest.raises(TypeError, match=WHY):
        use(none)


@pytest.mark.parametrize("use", [json.dumps, lambda token: token + 1, datetime.date.fromordinal])
def test_others_are_refused_by_whoever_is_asked(none, use):
    with pytest.raises(TypeError):
        use(none)


def test_it_can_be_shown(none):
    assert repr(none).startswith("<no single fence token: each resource has its own ('order:7', 'stock:x')")


def test_a_fenced_write_refuses_it_and_names_where_to_look(none):
    with pytest.raises(TypeError, match=r"token must be .* request\.fence_tokens\['order:7'\]"):
        checked_token(none)


def test_the_mapping_is_live_and_read_only():
    leases = {"order:7": Lease(b"x", 5), "stock:x": Lease(b"y", 6)}
    tokens = FenceTokens(leases)
    assert tokens == {"order:7": 5, "stock:x": 6}
    leases["order:7"].fence_token = 8
    assert tokens["order:7"] == 8
    assert list(tokens.items()) == [("order:7", 8), ("stock:x", 6)]
    assert tokens.get("order:8") is None
    assert "order:8" not in tokens
    with pytest.raises(KeyError, match="no fence token of 'order:8' here; there are those of 'order:7', 'stock:x'"):
        tokens["order:8"]
    assert not hasattr(tokens, "__setitem__")
