"""axe-core finds nothing serious or critical, in every section, light and dark, on a phone and on a wide screen; and no
section is wider than its screen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from tests.page.looking import Room, Tab, rough
from tests.support.patience import PATIENCE

AXE = Path(__file__).resolve().parents[2] / ".build" / "page" / "node_modules" / "axe-core" / "axe.min.js"
SECTIONS = (
    *("", "servers/one", "servers/gone", "calls", "sessions", "tasks", "tools", "tools/one_slow"),
    *("approvals", "changes", "timeline", "tree"),
)
SIZES = {"wide": {"width": 1600, "height": 1000}, "phone": {"width": 360, "height": 844}}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", ["light", "dark"])
def test_axe_finds_nothing_serious(room_of: Callable[..., Room], tab: Tab, mode: str, size: str) -> None:
    entries = {"one": rough(), "gone": {"command": "/there/is/none"}, "off": rough(disabled=True)}
    room = room_of(entries, approve="destructive", drainTimeoutMs=200)
    client = room.client()
    # axe is not of the page, so its policy is not asked.
    page = tab.open(room, color_scheme=mode, viewport=SIZES[size], bypass_csp=True)
    client.call("one_echo", text="up")
    client.call("gone_anything")
    slow = client.begin("one_slow", seconds=30)
    held = room.client()
    asked = held.begin("one_erase", text="all of it")
    expect(page.get_by_role("article")).to_be_visible()
    found = serious(page, tab, SECTIONS)
    assert found == [], "\n".join(found)
    tab.go(page, "approvals")
    page.get_by_role("button", name="Refuse").click()
    asked.join(PATIENCE)
    room.process.terminate()
    slow.join(PATIENCE)
    tab.errors.clear()


def serious(page: Page, tab: Tab, places: Sequence[str]) -> list[str]:
    """What axe finds there, and which of them are wider than the screen."""
    page.evaluate(AXE.read_text("utf-8"))
    found: list[str] = []
    for where in places:
        tab.go(page, where)
        page.wait_for_timeout(350)
        if page.evaluate("() => document.documentElement.scrollWidth > document.documentElement.clientWidth"):
            found.append(f"{where or 'overview'} is wider than the screen")
        said = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
        for each in said["violations"]:
            if each["impact"] in ("serious", "critical"):
                places = [(node["target"], node["failureSummary"]) for node in each["nodes"][:3]]
                found.append(f"{where or 'overview'}: {each['id']}: {places}")
    return found
