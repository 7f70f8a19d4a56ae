"""Takes the pictures of docs/images from a server that runs: python -m ...make_screenshots URL.

Have some load on the server, such as `enginewright bench serve URL --max-concurrency 6`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from .chromium import open_browser

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "images"
QUESTION = "Why is the sky blue? Answer in two sentences."


def main(url: str) -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, width, height, dark in (
        ("dashboard", 1280, 960, False),
        ("dashboard-dark", 1280, 960, True),
        ("dashboard-phone", 390, 844, False),
        ("dashboard-phone-chat", 390, 844, True),
    ):
        driver = open_browser(width, height, dark)
        driver.get(url)
        time.sleep(4)
        if name != "dashboard-phone":
            _chat(driver)
        time.sleep(25 if width > 500 else 4)
        driver.save_screenshot(str(FOLDER / f"{name}.png"))
        driver.quit()


def _chat(driver: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    button = driver.find_element("css selector", "nav button[data-view=chat]")
    if button.is_displayed():
        button.click()
    driver.find_element("id", "show-probabilities").click()
    driver.find_element("id", "prompt").send_keys(QUESTION + Keys.ENTER)
    deadline = time.monotonic() + 90
    while driver.find_element("id", "send").text != "Send" and time.monotonic() < deadline:
        time.sleep(0.5)
    tokens = driver.find_elements("css selector", ".token")
    ActionChains(driver).move_to_element(tokens[min(9, len(tokens) - 1)]).perform()


if __name__ == "__main__":
    main(sys.argv[1])
