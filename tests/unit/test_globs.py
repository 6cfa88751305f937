"""Patterns are refused with a reason, or mean what Redis takes them to mean."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenced_locks.globs import compile_glob, escape, literal


def matches(pattern, text):
    return compile_glob(pattern).fullmatch(text.encode()) is not None


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("", "it is empty"),
        ("order:\\", "ends in a backslash that escapes nothing"),
        ("order:[1", "has a '[' without its closing ']'"),
        ("order:[", "has a '[' without its closing ']'"),
        ("order:[^", "has a '[' without its closing ']'"),
        ("order:[\\]", "has a '[' without its closing ']'"),
        # The bracket is the end of the range.
        ("order:[a-]", "has a '[' without its closing ']'"),
        ("straße:[ä-ö]", "has a character outside ASCII in brackets, which match single bytes"),
        ("[é]", "has a character outside ASCII in brackets, which match single bytes"),
        ("\ud800", "surrogates not allowed"),
    ],
)
def test_a_bad_pattern_is_refused_with_the_reason(pattern, reason):
    with pytest.raises(ValueError, match=re.escape(f"bad pattern {pattern!r}: ") + ".*" + re.escape(reason)):
        compile_glob(pattern)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("order:1", ["order:1"], ["order:10", "xorder:1", "order:"]),
        ("*", ["a", "a\nb", "straße"], []),
        ("order:*", ["order:", "order:1", "order:1\n2"], ["order", "border:1"]),
        ("*:*:*", ["::", "a:b:c"], [":", "a:b"]),
        ("a*b*c", ["abc", "a-b-c", "abbcc"], ["ac", "acb", "abcd"]),
        ("order:?", ["order:1", "order:\n"], ["order:", "order:12"]),
        # One byte, not one character.
        ("stra??e", ["straße"], ["stra-e"]),
        ("[0-9]", ["0", "5", "9"], ["a", "", "10"]),
        ("[9-0]", ["0", "5", "9"], ["a"]),
        ("[^0-9]", ["a"], ["5", "ab"]),
        ("[]", [], ["a", "]", ""]),
        ("[^]", ["a", "]"], ["", "ab"]),
        ("[a^]", ["a", "^"], ["b"]),
        ("[\\]]", ["]"], ["\\", "a"]),
        ("[\\a-z]", ["a", "-", "z"], ["b"]),
        ("[--/]", ["-", ".", "/"], ["0"]),
        ("[[-\\]", ["[", "\\"], ["]", "-"]),
        ("[.&&|~]", [".", "&", "|", "~"], ["a"]),
        ("]", ["]"], []),
        ("a.c", ["a.c"], ["abc"]),
        ("\\*\\?\\[\\\\\\a", ["*?[\\a"], ["x"]),
    ],
)
def test_a_pattern_means_what_redis_means(pattern, yes, no):
    assert [text for text in yes if not matches(pattern, text)] == []
    assert [text for text in no if matches(pattern, text)] == []


def test_an_argument_that_was_no_utf8_matches_the_same_bytes():
    assert compile_glob("caf\udce9*").fullmatch(b"caf\xe9-1")


@pytest.mark.timeout(10)
def test_many_stars_do_not_take_for_ever():
    assert not matches("*a" * 30 + "b", "a" * 5000)


@given(st.text(min_size=1), st.text())
def test_an_escaped_text_matches_itself_alone(text, other):
    text, other = (each.encode("utf-8", "replace").decode() for each in (text, other))
    assert matches(escape(text), text)
    assert matches(escape(text), other) == (text == other)
    assert literal(escape(text)) == text


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("order:1", "order:1"),
        ("\\*", "*"),
        ("a\\\\b", "a\\b"),
        ("]-^", "]-^"),
        ("*", None),
        ("a?", None),
        ("[a]", None),
    ],
)
def test_a_pattern_for_one_text_is_told_from_the_others(pattern, text):
    assert literal(pattern) == text
