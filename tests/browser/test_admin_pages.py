"""See and free locks, as a person does it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser import shop as shops
from tests.helpers import wait_until

REQUIRED = os.environ.get("BROWSER_TESTS") == "required"


def missing() -> str:
    """Return what is missing for these tests."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is missing: pip install -e '.[browser]'"
    return "" if shops.chromium() else "Chromium is missing: apt-get install chromium"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[shops.Shop]:
    """The shop, served."""
    if reason := missing():
        (pytest.fail if REQUIRED else pytest.skip)(reason)
    started = shops.Shop(tmp_path_factory.mktemp("shop"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def browser(shop: shops.Shop) -> Iterator[Any]:
    """Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = shops.launch(playwright)
        yield browser
        browser.close()


@pytest.fixture
def visit(shop: shops.Shop, browser: Any) -> Iterator[Any]:
    """`visit(user, **options)` opens the list of locks; a page that has an error of its own fails the test."""
    shop.client.flushdb()
    contexts, errors = [], []

    def open_list(user: str, **options: Any) -> Any:
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("response", lambda response: response.status >= 500 and errors.append(response.url))
        shops.log_in(page, shop, user)
        page.click("#content-main >> text=Fenced locks >> nth=-1")
        page.wait_for_selector("#changelist")
        return page

    yield open_list
    for context in contexts:
        context.close()
    assert errors == []


def names(page: Any) -> list[str]:
    return [text.strip() for text in page.locator("th.field-resource").all_inner_texts()]


def test_list_and_search(shop: shops.Shop, visit: Any) -> None:
    shop.take("order:1")
    shop.take("stock:lamp").release()
    page = visit("admin")
    assert names(page) == ["order:1", "stock:lamp"]
    page.fill("#searchbar", "stock:*")
    page.press("#searchbar", "Enter")
    page.wait_for_url(re.compile(r"q=stock"))
    assert names(page) == ["stock:lamp"]
    page.click("text=Held only")
    page.wait_for_url(re.compile(r"held=1"))
    assert "Nothing that matches is held." in page.inner_text("#changelist")


def test_a_long_list_has_parts(shop: shops.Shop, visit: Any) -> None:
    shop.client.mset({f"fence:{{order:{number:04}}}": number for number in range(400)})
    page = visit("admin")
    seen = set(names(page))
    for _ in range(10):
        if not page.locator("text=Next part").count():
            break
        page.click("text=Next part")
        page.wait_for_url(re.compile(r"cursor="))
        seen |= set(names(page))
    assert len(seen) == 400


def test_a_detail_page_and_its_rows(shop: shops.Shop, visit: Any) -> None:
    lock = shop.take("order:1001")
    page = visit("admin")
    page.click("text=order:1001")
    page.wait_for_selector(".fence-rows")
    assert lock.owner_id in page.inner_text(".field-owner")
    assert re.search(r"order 1001\s+\d+\s+(never written|older)", page.inner_text(".fence-rows"))
    page.click(".fence-rows a")
    page.wait_for_url(re.compile(r"/shop/order/1001/"))


def test_a_release_wakes_the_next_waiter_and_is_in_the_log(shop: shops.Shop, visit: Any) -> None:
    stuck = shop.take("order:1001")
    token = stuck.fence_token
    page = visit("admin")
    with shop.waiter("order:1001") as taken:
        page.check("input.action-select")
        page.click("text=Release selected")
        page.wait_for_selector(".fence-leases")
        question = page.inner_text(".fence-leases")
        assert stuck.owner_id in question
        assert re.search(r"lease left: \d+\.\d s", question)
        page.click("text=Yes, release")
        page.wait_for_selector(".messagelist .success")
        assert "1 row carries the newer token" in page.inner_text(".messagelist")
        wait_until(lambda: taken)
        assert taken[0].fence_token > token
    page.goto(shop.url)
    assert "order:1001" in page.inner_text("#recent-actions-module")
    page.click("#recent-actions-module >> text=order:1001")
    page.wait_for_selector(".field-owner")
    page.click("text=History")
    page.wait_for_selector("#change-history")
    assert f"held by {stuck.owner_id}" in page.inner_text("#change-history")


def test_no_takes_me_back(shop: shops.Shop, visit: Any) -> None:
    stuck = shop.take("order:1001")
    page = visit("admin")
    page.click("text=order:1001")
    page.click("text=Release…")
    page.click("text=No, take me back")
    page.wait_for_selector("#changelist")
    assert stuck.owned()


def test_without_the_permission_there_is_no_button(shop: shops.Shop, visit: Any) -> None:
    shop.take("order:1001")
    page = visit("viewer")
    assert page.locator("input.action-select").count() == 0
    page.click("text=order:1001")
    page.wait_for_selector(".field-owner")
    assert page.locator("text=Release").count() == 0
    assert page.locator(".fence-rows").count() == 0
    assert page.goto(f"{shop.url}fenced_locks/lock/release/?name=order_3A1001").status == 403


def test_a_name_with_markup_is_text(shop: shops.Shop, visit: Any) -> None:
    shop.take("<img src=x onerror=alert(1)>")
    page = visit("admin")
    dialogs: list[Any] = []
    page.on("dialog", lambda dialog: dialogs.append(dialog))
    assert names(page) == ["<img src=x onerror=alert(1)>"]
    page.click("th.field-resource a")
    page.wait_for_selector(".field-owner")
    assert dialogs == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_nothing_leaves_the_screen(shop: shops.Shop, visit: Any, scheme: str) -> None:
    shop.take("order:1001")
    page = visit("admin", viewport={"width": 390, "height": 800}, color_scheme=scheme)
    for address in ("", "order_3A1001/change/", "release/?name=order_3A1001"):
        page.goto(f"{shop.url}fenced_locks/lock/{address}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, address
    text, ground = (page.evaluate(f"getComputedStyle(document.body).{name}") for name in ("color", "backgroundColor"))
    bright = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (text, ground)]
    assert (bright[0] > bright[1]) == (scheme == "dark")


def test_a_server_that_is_down_is_a_message(shop: shops.Shop, visit: Any) -> None:
    page = visit("admin")
    shop.client.config_set("maxclients", 1)
    try:
        page.reload()
        assert "cannot be read" in page.inner_text(".errornote")
    finally:
        shop.client.config_set("maxclients", 1000)
