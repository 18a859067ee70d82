"""Draw `docs/page-light.png` and `docs/page-dark.png`, the pictures of the page in README: a real gateway with ten
servers, a minute and a half of calls, one server that crashes, one that cannot start, and a call that waits for a
person. And `docs/page-tape.png`, the page of a tape.

`make page-picture` plays it in a Chromium and writes the pictures, with few colours, so that they are small.
"""

from __future__ import annotations

import io
import os
import random
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from PIL import Image
from playwright.sync_api import Browser, ViewportSize, sync_playwright
from tests.page.looking import OWNER, Room, rough, running, tape_page

ROOT: Final = Path(__file__).resolve().parent.parent
SIZE: Final = ViewportSize(width=1280, height=860)
COLOURS: Final = 128
SECONDS: Final = float(os.environ.get("GREENROOM_PICTURE_SECONDS", "90"))
NAMES: Final = ("calendar", "database", "docs", "files", "issues", "mail", "notes", "search")
FAILS: Final = "import sys; sys.exit('The variable TRACKER_TOKEN is not set.')"


def main() -> int:
    entries: dict[str, Any] = {name: rough("find", "Finds what has these words.") for name in NAMES}
    entries |= {
        "tracker": {"command": sys.executable, "args": ["-c", FAILS]},
        "weather": rough(disabled=True),
    }
    with running(dict(sorted(entries.items())), {"approve": "destructive"}) as room:
        over = threading.Event()
        work = [threading.Thread(target=_work, args=(room, seed, over), daemon=True) for seed in range(4)]
        for thread in work:
            thread.start()
        _look(room)
        over.set()
        for thread in work:
            thread.join(30)
    return 0


def _work(room: Room, seed: int, over: threading.Event) -> None:
    chance, client = random.Random(seed), room.client()
    while not over.is_set():
        server = chance.choice(NAMES[seed:][:5])
        match chance.random():
            case luck if luck < 0.01:
                client.call(f"{server}_die")
            case luck if luck < 0.3:
                client.call(f"{server}_slow", seconds=chance.expovariate(1.5))
            case _:
                client.call(f"{server}_find", text="green")
        over.wait(chance.expovariate(1.2))


def _look(room: Room) -> None:
    named = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=named, args=["--no-sandbox", "--hide-scrollbars"]
        )
        _look_at_tape(browser)
        pages = {}
        for mode in ("light", "dark"):
            context = browser.new_context(viewport=SIZE, color_scheme=mode, device_scale_factor=1.5)
            pages[mode] = context.new_page()
            pages[mode].goto(f"{room.url}/#token={OWNER}")
        pages["light"].get_by_role("link", name="tracker", exact=True).wait_for()
        time.sleep(SECONDS)
        asker = room.client()
        asked = asker.begin("files_erase", text="drafts/2026-11.md")
        for mode, page in pages.items():
            page.get_by_role("article").wait_for()
            page.evaluate("document.getElementById('gateway').hidden = true")  # the folder is of this machine
            page.wait_for_timeout(1500)
            _keep(page.screenshot(), ROOT / "docs" / f"page-{mode}.png")
        pages["light"].get_by_role("button", name="Refuse").click()
        asked.join(30)
        browser.close()


def _look_at_tape(browser: Browser) -> None:
    docs = ROOT / "docs"
    with tape_page(docs / "incidents" / "full-pool.tape") as url:
        page = browser.new_page(viewport=SIZE, color_scheme="light", device_scale_factor=1.5)
        page.goto(url)
        page.get_by_role("button", name="reports_make").first.wait_for()
        page.evaluate("document.getElementById('gateway').hidden = true")  # the folder is of this machine
        page.get_by_role("button", name="search_text, 2.6 s").first.click()
        page.get_by_role("complementary").get_by_role("region", name="Error").wait_for()
        page.wait_for_timeout(500)
        _keep(page.screenshot(), docs / "page-tape.png")
        page.close()


def _keep(picture: bytes, file: Path) -> None:
    few = Image.open(io.BytesIO(picture)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    few.save(file, optimize=True)
    print(f"{file.relative_to(ROOT)}: {file.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    sys.exit(main())
