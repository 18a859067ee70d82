"""`greenroom page --tape`: a recording in a browser; and the timeline by keyboard, of a tape and of a room."""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect
from tests.page.looking import OWNER, PATIENCE, Room, Tab, rough, serving, tape_page
from tests.page.test_accessible import SIZES, serious
from tests.support.tape_lines import HEAD, moved
from tests.support.tape_lines import call as call_line

EVIL = '<img src=x onerror=alert(1)>"\u202e'


def call(number: int, begun: float, ended: float, **more: Any) -> dict[str, Any]:
    """Each of a tool of its own, with a text of its own."""
    about = {
        "session": "ann",
        "params": {"name": "buy", "arguments": {"what": f"milk {number}"}},
        "tool": f"shop_buy_{number}",
    }
    return call_line(number, begun, ended, f"bought {number}", **{**about, **more})


ASKED = {
    "t": 3.1,
    "method": "elicitation/create",
    "params": {"message": "Which milk?"},
    "answer": {"action": "accept"},
}
LINES = [
    HEAD,
    moved(0.0, "idle", "connecting"),
    moved(1.0, "connecting", "connected"),
    call(1, 1.0, 2.0),
    call(2, 3.0, 4.0, progress=[[3.5, {"progress": 1, "total": 2, "message": "half way"}]], asked=[ASKED]),
    call(3, 5.0, 6.0, outcome="call_failed", reach="sent", error={"code": "call_failed", "message": "it was lost"}),
    moved(6.0, "connected", "draining", cause="lost", detail="exited with code 7"),
]  # fmt: skip


@pytest.fixture
def look(tmp_path: Path, tab: Tab) -> Any:
    """`look(lines, **options)`: the page of this tape, until the end of the test."""
    opened = ExitStack()

    def open_page(lines: Iterable[Any], where: str = "", **options: Any) -> Page:
        file = tmp_path / "one.tape"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        page = tab.open_at(opened.enter_context(tape_page(file)), **options)
        opened.callback(page.close)  # before its server is, which the browser would tell
        expect(spans(page).first).to_be_visible()
        if where:
            tab.go(page, where)
        return page

    with opened:
        yield open_page


def spans(page: Page) -> Locator:
    return page.locator(".timeline rect")


def panel(page: Page) -> Locator:
    return page.get_by_role("complementary")


def focused(page: Page) -> str:
    return page.evaluate(
        "document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent"
    )


def test_a_call_is_opened_from_its_bar_with_all_that_was_said(look: Callable[..., Page]) -> None:
    page = look(LINES)
    expect(page.get_by_text("Recorded 2026-11-28 08:27:18 UTC by Greenroom 1")).to_be_visible()
    expect(page.locator("#kind")).to_have_text("tape")
    expect(page.get_by_role("navigation").get_by_role("link")).to_have_count(1)
    page.get_by_role("button", name="shop_buy_2, 1.0 s, at 3.000 s").first.click()
    opened = panel(page)
    expect(opened.get_by_role("heading", name="shop_buy_2")).to_be_focused()
    expect(opened.get_by_role("region", name="Arguments")).to_contain_text('"what": "milk 2"')
    expect(opened.get_by_role("region", name="Answer")).to_contain_text("bought 2")
    expect(opened.get_by_role("region", name="Progress")).to_contain_text("1 of 2  half way")
    expect(opened).to_contain_text("Which milk?")
    opened.get_by_role("link", name="Next call").click()
    expect(opened.get_by_role("region", name="Error")).to_contain_text("it was lost")
    expect(opened).to_contain_text("sent")
    page.keyboard.press("Escape")
    expect(panel(page)).to_have_count(0)


def test_the_tables_have_what_the_timeline_has(look: Callable[..., Page]) -> None:
    page = look(LINES)
    calls = page.get_by_role("table", name="Calls")
    expect(calls.get_by_role("row")).to_have_count(4)
    page.get_by_role("button", name="Failed 1").click()
    expect(calls.get_by_role("row")).to_have_count(2)
    expect(calls).to_contain_text("call failed")
    servers = page.get_by_role("table", name="What servers did")
    expect(servers).to_contain_text("connected")
    expect(servers.locator(".failed").filter(has_text="lost: exited with code 7")).to_have_count(2)
    expect(page.locator("rect.error[aria-label^='lost: exited']")).to_have_count(1)
    page.keyboard.press("/")
    page.keyboard.type("nothing")
    expect(page.get_by_text("No call fits.")).to_be_visible()


def test_the_timeline_is_walked_by_keyboard(look: Callable[..., Page]) -> None:
    page = look(LINES)
    page.locator("h1").focus()
    for _ in range(12):
        page.keyboard.press("Tab")
        if "shop_buy_1" in focused(page):
            break
    assert focused(page).startswith("shop_buy_1, 1.0 s")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert focused(page) == "shop_buy_3, 1.0 s, at 5.000 s, failed"
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    assert focused(page).startswith(("connected", "connecting")), "the lane of the server"
    page.keyboard.press("ArrowUp")
    page.keyboard.press("End")
    before = page.get_by_role("button", name="shop_buy_3").first.bounding_box()
    page.keyboard.press("+")
    after = page.get_by_role("button", name="shop_buy_3").first.bounding_box()
    assert before
    assert after
    assert after["width"] > 2 * before["width"]
    assert focused(page).startswith("shop_buy_3")
    page.keyboard.press("0")
    page.keyboard.press("Enter")
    expect(panel(page).get_by_role("heading", name="shop_buy_3")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="shop_buy_3, 1.0 s").first).to_be_focused()
    page.get_by_role("table", name="Calls").get_by_role("link", name="shop_buy_2").click()
    expect(panel(page)).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("table", name="Calls").get_by_role("link", name="shop_buy_2")).to_be_focused()


def test_the_timeline_of_a_room_is_walked_by_keyboard_too(room_of: Callable[..., Room], tab: Tab) -> None:
    room = room_of({"one": rough()})
    page = tab.open(room)
    client = room.client()
    for text in ("a", "b"):
        client.call("one_echo", text=text)
    client.call("one_slow", seconds=1)
    tab.go(page, "timeline")
    slow = page.get_by_role("button", name="one_slow").first
    slow.focus()
    page.keyboard.press("Enter")
    expect(page.locator(".span")).to_contain_text("took")
    assert focused(page) == "one_slow"


def test_ten_thousand_calls_scroll_smoothly_and_each_can_be_reached(look: Callable[..., Page]) -> None:
    dice = random.Random(1)
    lines: list[Any] = [HEAD, moved(0.0, "idle", "connecting"), moved(0.1, "connecting", "connected")]
    for number in range(1, 10_001):
        begun = number * 0.05
        lines.append(call(number, begun, begun + dice.expovariate(5), session=f"agent-{number % 3}"))
    page = look(lines)
    assert 10 < spans(page).count() < 6_000
    gaps = page.evaluate("""async () => {
        const gaps = []
        let [last, y] = [performance.now(), 0]
        for (let frame = 0; frame < 90; frame++) {
            scrollTo(0, (y += 60))
            await new Promise(requestAnimationFrame)
            const at = performance.now()
            gaps.push(at - last)
            last = at
        }
        return gaps
    }""")
    median = statistics.median(gaps)
    print(f"\nmedian frame: {median:.1f} ms")
    assert median <= 25.0
    page.evaluate("scrollTo(0, 0)")
    page.locator("rect.many").first.focus()
    for _ in range(20):
        if "Open to zoom in" not in focused(page):
            break
        page.keyboard.press("Enter")
    assert focused(page).startswith("shop_buy_")
    page.keyboard.press("Enter")
    expect(panel(page).get_by_role("region", name="Answer")).to_contain_text("bought")
    page.keyboard.press("Escape")
    table = page.get_by_role("table", name="Calls")
    assert table.get_attribute("aria-rowcount") == "10001"
    table.get_by_role("link").first.focus()
    page.keyboard.press("End")
    expect(table.get_by_role("link", name="shop_buy_10000")).to_be_focused()


def test_a_strangers_tape_stays_text(look: Callable[..., Page], tab: Tab) -> None:
    page = look(
        [
            HEAD | {"greenroom": EVIL},
            moved(0.0, "idle", "connecting", server=EVIL, cause=EVIL, detail=EVIL),
            call(1, 0.0, 1.0, server=EVIL, tool=EVIL, session=EVIL, method=EVIL, params={EVIL: EVIL},
                 progress=[[0.5, {"message": EVIL, "progress": [EVIL]}]],
                 asked=[{"t": 0.1, "method": EVIL, "params": {EVIL: EVIL}}],
                 result={"content": [{"type": EVIL, "text": EVIL}]}),
            call(2, 1.0, 2.0, result=[[EVIL]], params=[EVIL]),
            call(3, 1.0, 9.0, result=None, scope=EVIL, outcome=EVIL),
        ],
    )  # fmt: skip
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    for where in ("calls/1", "calls/2", "calls/3", "calls/77", f"calls/{EVIL}", "servers/shop", "tools"):
        tab.go(page, where)
        page.wait_for_timeout(300)
        assert page.locator("main img, aside img, main script").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert "\u202e" not in page.locator("body").inner_text()
    tab.errors[:] = [error for error in tab.errors if "40" not in error]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", ["light", "dark"])
def test_axe_finds_nothing_serious(look: Callable[..., Page], tab: Tab, mode: str, size: str) -> None:
    page = look(LINES, color_scheme=mode, viewport=SIZES[size], bypass_csp=True)
    found = serious(page, tab, ("", "calls/2", "calls/3"))
    assert found == [], "\n".join(found)


def test_the_page_of_a_replay_says_that_it_is_one(tmp_path: Path, tab: Tab) -> None:
    file = tmp_path / "one.tape"
    file.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    with serving(tmp_path, "replay", str(file)) as room:
        page = tab.open(room, token="", ready=False)
        expect(page.locator("#kind")).to_have_text("replay", timeout=PATIENCE * 1000)
        expect(
            page.get_by_text("Calls here answer from the tape one.tape. Nothing is started.")
        ).to_be_visible()
        page.close()  # before its server is, which the browser would tell


def test_a_room_in_service_says_nothing_of_the_kind(room_of: Callable[..., Room], tab: Tab) -> None:
    page = tab.open(room_of({"one": rough()}), token=OWNER)
    expect(page.locator("#kind")).to_be_hidden()
