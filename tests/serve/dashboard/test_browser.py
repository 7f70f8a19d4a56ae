"""The page in a real browser: it opens, chats, shows tokens as they come, and its map moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from enginewright.serve.operation.keys import KeyRing, KeyRule
from enginewright.serve.tokenizer import Tokenizer
from tests.serve.conftest import ANSWER, Served, wait_until
from tests.serve.fake_client import FakeClient
from tests.serve.operation.conftest import operated

from .chromium import open_browser, skip_reason

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(skip_reason() is not None, reason=str(skip_reason())),
]

# A checksum of the picture: changes when any block changes its colour.
MAP = """const c = document.getElementById('blocks');
const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
let sum = 0; for (let i = 0; i < d.length; i += 4) sum = (sum * 31 + d[i]) % 1000003; return sum;"""


@pytest.fixture(params=[1280, 390])
def page(request: pytest.FixtureRequest, served_page: Served) -> Iterator[Any]:
    driver = open_browser(request.param, 844)
    try:
        driver.get(f"http://127.0.0.1:{served_page.port}/")
        yield driver
        errors = [line for line in driver.get_log("browser") if line["level"] == "SEVERE"]
        assert errors == []
    finally:
        driver.quit()


@pytest.fixture
def served_page(fake: FakeClient, tokenizer: Tokenizer) -> Iterator[Served]:
    fake.step_seconds = 0.05
    with operated(fake, tokenizer) as served:
        yield served


def find(page: Any, selector: str) -> Any:
    return page.find_element("css selector", selector)


def text(page: Any, selector: str) -> str:
    return find(page, selector).get_attribute("textContent")


def soon(condition: Callable[[], Any]) -> None:
    wait_until(lambda: bool(condition()))


def to_chat(page: Any) -> None:
    button = find(page, "nav button[data-view=chat]")
    if button.is_displayed():  # on a phone the views take turns
        button.click()


def test_it_opens_and_fits(page: Any) -> None:
    soon(lambda: text(page, "#status") == "ready")
    assert text(page, "#model") == "fake"
    soon(lambda: text(page, "#t-running-of") == "of 8")
    assert "64 blocks" in text(page, "#blocks-text")
    wide = page.execute_script("return document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0, "the page scrolls sideways"
    hosts = page.execute_script(
        "return performance.getEntriesByType('resource').map(e => new URL(e.name).host)"
    )
    assert set(hosts) == {page.execute_script("return location.host")}


def test_it_chats_and_the_map_moves(page: Any, served_page: Served) -> None:
    from selenium.webdriver.common.keys import Keys

    soon(lambda: text(page, "#status") == "ready")
    before = page.execute_script(MAP)
    to_chat(page)
    find(page, "#prompt").send_keys("Hello" + Keys.ENTER)
    soon(lambda: page.find_elements("css selector", ".token"))
    some = len(page.find_elements("css selector", ".token"))
    assert text(page, "#send") == "Stop"
    soon(lambda: len(page.find_elements("css selector", ".token")) > some)  # it streams
    live = find(page, "nav button[data-view=live]")
    phone = live.is_displayed()
    if phone:
        live.click()
    soon(lambda: page.execute_script(MAP) != before)
    if phone:
        to_chat(page)
    soon(lambda: text(page, "#send") == "Send")
    answer = "".join(
        token.get_attribute("textContent") for token in page.find_elements("css selector", ".token")
    )
    assert answer == ANSWER
    assert "first token after" in text(page, ".message.assistant .meta")


def test_token_probabilities_by_keyboard(page: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    to_chat(page)
    find(page, "#prompt").send_keys("Hello" + Keys.ENTER)
    soon(lambda: text(page, "#send") == "Send" and page.find_elements("css selector", ".token"))
    page.execute_script("document.querySelector('.token').focus()")
    assert find(page, "#tip").is_displayed()
    assert len(page.find_elements("css selector", "#tip .row")) == 5
    assert page.find_elements("css selector", "#tip .row.chosen")
    page.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    second = page.find_elements("css selector", ".token")[1]
    assert page.switch_to.active_element == second
    assert second.get_attribute("aria-describedby") == "tip"


def test_everything_has_a_name_and_a_place_in_the_order(page: Any) -> None:
    nameless = page.execute_script(
        """return [...document.querySelectorAll('button, input, textarea, [role=img], summary')]
        .filter(e => !e.getAttribute('aria-label') && !e.textContent.trim() && !e.labels?.length)
        .map(e => e.outerHTML)"""
    )
    assert nameless == []


def test_dark_and_light(page: Any) -> None:
    ground = "return getComputedStyle(document.body).backgroundColor"
    light = page.execute_script(ground)
    find(page, "#theme").click()
    assert page.execute_script(ground) != light
    page.refresh()
    assert page.execute_script(ground) != light, "the choice lasts"


def test_a_key_is_asked_for_and_kept_in_the_tab(fake: FakeClient, tokenizer: Tokenizer) -> None:
    ring = KeyRing({"secret": KeyRule("me")})
    with operated(fake, tokenizer, ring=ring) as served:
        driver = open_browser(1280, 844)
        try:
            driver.get(f"http://127.0.0.1:{served.port}/")
            soon(lambda: find(driver, "#key-dialog").is_displayed())
            find(driver, "#key").send_keys("wrong\n")
            soon(lambda: "not known" in text(driver, "#key-text"))
            find(driver, "#key").send_keys("secret\n")
            soon(lambda: text(driver, "#status") == "ready")
            driver.refresh()
            soon(lambda: text(driver, "#status") == "ready")
            assert driver.execute_script("return sessionStorage.getItem('key')") == "secret"
            assert driver.execute_script("return localStorage.getItem('key')") is None
        finally:
            driver.quit()
