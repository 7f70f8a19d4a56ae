"""Debian's Chromium, headless, at a given size."""

from __future__ import annotations

import shutil
from typing import Any

BINARIES = {name: shutil.which(name) for name in ("chromium", "chromedriver")}


def skip_reason() -> str | None:
    """Return why there is no browser, or None if there is one."""
    missing = [name for name, path in BINARIES.items() if path is None]
    if missing:
        return f"{' and '.join(missing)} not installed (Debian: chromium chromium-driver)"
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed"
    return None


def open_browser(width: int, height: int, dark: bool = False) -> Any:
    """Return a driver whose page is `width` CSS pixels wide."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(BINARIES["chromium"])
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(str(BINARIES["chromedriver"]))
    driver = webdriver.Chrome(options=options, service=service)
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
    return driver
