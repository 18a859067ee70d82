"""A gateway over HTTP with the page, and a browser that looks at it.

`make page-test` runs this folder, in no other way: it needs Playwright and a Chromium (`CHROMIUM=` names another than
the first on the path). Whatever a test does, the page must log no error and reach no other host: the fixture `tab`
looks at that at the end of each.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright
from tests.page.looking import Entries, Room, Tab, running


@pytest.fixture
def room_of() -> Iterator[Callable[..., Room]]:
    """`room_of(entries, **settings)`: a gateway of these servers, until the end of the test."""
    with ExitStack() as opened:

        def start(entries: Entries, *, expose: str = "direct", **settings: Any) -> Room:
            return opened.enter_context(running(entries, settings, expose))

        yield start


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    named = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    assert named, "No Chromium was found. Install it, or name one: make page-test CHROMIUM=/path/to/chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=named, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def tab(browser: Browser) -> Iterator[Tab]:
    tab = Tab(browser)
    yield tab
    tab.close()
