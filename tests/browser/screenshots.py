"""
Write the screenshots of the docs: `python -m tests.browser.screenshots`.

They are of the example shop, in the system's Chromium.
"""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from tests.browser.shop import Shop, launch, log_in

ASSETS = Path(__file__).resolve().parents[2] / "docs" / "pages" / "assets"
_LIMIT = 100_000
_DESKTOP = {"width": 1280, "height": 620}
_PHONE = {"width": 390, "height": 720}
_HELD = {"order:1001": ("web-1:4211", 58), "stock:lamp": ("web-2:977", 21), "report:daily": ("cron-1:88", 3541)}
_LIST, _ONE, _RELEASE = "", "order_3A1001/change/", "release/?name=order_3A1001"
# Name, address, window, colours.
PICTURES: list[tuple[str, str, dict[str, int], str]] = [
    ("admin-list-light", _LIST, _DESKTOP, "light"),
    ("admin-list-dark", _LIST, _DESKTOP, "dark"),
    ("admin-detail-light", _ONE, {**_DESKTOP, "height": 960}, "light"),
    ("admin-release-light", _RELEASE, {**_DESKTOP, "height": 400}, "light"),
    ("admin-list-phone", _LIST, _PHONE, "light"),
    ("admin-detail-phone", _ONE, _PHONE, "dark"),
]


def main() -> None:
    """Write all of them."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        shop = Shop(Path(folder))
        browser = launch(playwright)
        try:
            _fill(shop)
            with shop.waiter("order:1001"):
                for name, address, viewport, scheme in PICTURES:
                    _save(name, _picture(browser, shop, address, viewport=viewport, color_scheme=scheme))
        finally:
            browser.close()
            shop.close()


def _fill(shop: Shop) -> None:
    for resource in ("order:1002", "order:1003", "stock:kettle", "customer:7"):
        shop.take(resource).release()
    tokens = {resource: shop.take(resource, 600).fence_token for resource in _HELD}
    write = f"Order.objects.filter(pk=1001).fenced_update({tokens['order:1001']}, status='confirmed')"
    shop.manage("shell", "--no-imports", "--command", f"from shop.models import Order; {write}")


def _hold(shop: Shop) -> None:
    """Let the leases have the same owners and ends in each picture, however slow the machine."""
    for resource, (owner, seconds) in _HELD.items():
        shop.client.set(resource, f"{owner}:62c1a4351e377c9089aec24c", px=seconds * 1000)


def _picture(browser: Any, shop: Shop, address: str, **options: Any) -> bytes:
    context = browser.new_context(**options)
    page = context.new_page()
    log_in(page, shop, "admin")
    _hold(shop)
    page.goto(f"{shop.url}fenced_locks/lock/{address}")
    shot: bytes = page.screenshot()
    context.close()
    return shot


def _save(name: str, shot: bytes) -> None:
    path = ASSETS / f"{name}.png"
    image = Image.open(io.BytesIO(shot)).convert("RGB").quantize(64)
    image.save(path, optimize=True)
    if path.stat().st_size > _LIMIT:
        raise SystemExit(f"{path} is larger than {_LIMIT} bytes")


if __name__ == "__main__":
    main()
