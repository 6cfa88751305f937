import inspect
from types import SimpleNamespace

import pytest

from fenced_locks.templates import ResourceTemplate


def signature(function):
    return inspect.signature(function)


def test_placeholders_are_filled_with_the_text_of_the_arguments():
    template = ResourceTemplate("order:<id>:<kind>")
    assert template.bind({"id": 7, "kind": "x", "other": None}) == "order:7:x"
    assert ResourceTemplate("nightly").bind({}) == "nightly"


def test_dotted_paths_reach_attributes():
    request = SimpleNamespace(user=SimpleNamespace(pk=3))
    assert ResourceTemplate("cart:<request.user.pk>").bind({"request": request}) == "cart:3"


@pytest.mark.parametrize("text", ["<>", "a<b", "a>b", "", "<a.b()>", "<_a>", "<a._b>", "<a.__class__>", "<a b>", "<1>"])
def test_what_cannot_be_parsed_is_refused(text):
    with pytest.raises(ValueError, match="resource"):
        ResourceTemplate(text)


@pytest.mark.parametrize("text", [None, 7, len])
def test_a_template_is_a_string(text):
    with pytest.raises(TypeError, match="resource must be a string"):
        ResourceTemplate(text)


def test_unknown_names_are_refused_where_the_signature_is_known():
    template = ResourceTemplate("order:<pk>")
    with pytest.raises(ValueError, match="names 'pk'"):
        template.check(signature(lambda request, id: None))
    template.check(signature(lambda request, pk: None))
    template.check(signature(lambda request, **kwargs: None))


@pytest.mark.parametrize("value", [None, "", object(), len, SimpleNamespace])
def test_a_value_that_names_no_one_resource_is_refused(value):
    with pytest.raises(ValueError, match="'id'"):
        ResourceTemplate("order:<id>").bind({"id": value})


def test_a_missing_argument_or_attribute_is_refused():
    with pytest.raises(ValueError, match="the call has no 'id'"):
        ResourceTemplate("order:<id>").bind({})
    with pytest.raises(ValueError, match=r"the call has no 'id\.pk'"):
        ResourceTemplate("order:<id.pk>").bind({"id": 7})


@pytest.mark.parametrize(
    ("text", "resource", "found"),
    [
        ("order:<pk>", "order:7", [["7"]]),
        ("order:<pk>", "order:", []),
        ("order:<pk>", "orders:7", []),
        ("<pk>", "7", [["7"]]),
        ("<a>:<b>", "x:y:z", [["x", "y:z"], ["x:y", "z"]]),
        ("<a><b>", "xyz", [["x", "yz"], ["xy", "z"]]),
        ("<a>!", "x!!", [["x!"]]),
        ("stock", "stock", [[]]),
        ("stock", "stocks", []),
        ("<a>", "%7B1%7D", [["%7B1%7D"], ["{1}"]]),
    ],
)
def test_a_resource_is_read_backwards_in_every_way(text, resource, found):
    assert list(ResourceTemplate(text).parse(resource)) == found
