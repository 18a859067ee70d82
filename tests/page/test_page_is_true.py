"""What the page shows is what the room is at that moment: while servers die and hang, sessions end, the stream
breaks, and the gateway stops. Beside these: a crash within a second, and all numbers of the status, in
`test_page_in_browser.py`.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
from playwright.sync_api import Page, Route, expect
from tests.page.looking import (
    READER,
    Room,
    Tab,
    cable_to,
    hanging_call,
    owner_page,
    room_that_bills,
    rough,
)
from tests.page.test_page_in_browser import state_of
from tests.support.patience import PATIENCE
from tests.support.whole import whole

SILENT = "The gateway does not answer."


def figure(page: Page, label: str) -> Any:
    return page.locator(".figures > div").filter(has_text=re.compile(label)).locator("dd")


def ended(page: Page) -> Any:
    return page.get_by_role("table", name="Ended calls").get_by_role("link")


def test_a_gateway_that_hangs_is_not_shown_as_live(room_of: Callable[..., Room], tab: Tab) -> None:
    room = room_of({"one": rough()})
    hangs = hanging_call(room.client())
    page = tab.open(room, "servers/one")
    page.get_by_role("button", name="Drain").wait_for()
    room.process.send_signal(signal.SIGSTOP)
    try:
        expect(page.get_by_text(SILENT)).to_be_visible(timeout=PATIENCE * 1000)
        expect(page.get_by_role("button", name="Drain")).to_have_count(0)
        seen = page.get_by_role("complementary").inner_text()
        page.wait_for_timeout(2100)  # two seconds more of the page's own clock
        assert page.get_by_role("complementary").inner_text() == seen, "time goes on as if it were known"
        assert page.get_by_text("live", exact=True).count() == 0
    finally:
        room.process.send_signal(signal.SIGCONT)
    expect(page.get_by_text("live", exact=True)).to_be_visible(timeout=PATIENCE * 1000)
    expect(page.get_by_text(SILENT)).to_be_hidden()
    expect(page.get_by_role("button", name="Drain")).to_be_visible()
    os.kill(room.row("one")["pid"], signal.SIGKILL)
    hangs.join(PATIENCE)
    tab.errors.clear()  # the browser tells of each try


def test_nothing_is_missed_while_the_stream_was_broken(room_of: Callable[..., Room], tab: Tab) -> None:
    room = room_of({"one": rough()})
    client = room.client()
    client.call("one_echo", text="up")
    with cable_to(room) as cable:
        page = tab.open(attrs.evolve(room, port=cable.port), "calls")
        expect(ended(page)).to_have_text(["one_echo"])
        cable.cut()
        expect(page.get_by_text(SILENT)).to_be_visible()
        client.call("one_slow", seconds=0)
        expect(ended(page)).to_have_text(["one_echo"])
        cable.mend()
        expect(ended(page)).to_have_text(["one_slow", "one_echo"], timeout=PATIENCE * 1000)
        page.close()  # before its cable is, which the browser would tell
    tab.errors.clear()


def test_another_gateway_at_the_same_address_begins_anew(room_of: Callable[..., Room], tab: Tab) -> None:
    room = room_of({"one": rough(), "two": rough()})
    client = room.client()
    client.call("one_echo", text="up")
    page = tab.open(room, "calls")
    expect(ended(page)).to_have_text(["one_echo"])
    with room.anew() as other:
        other.client().call("two_echo", text="up")
        expect(ended(page)).to_have_text(["two_echo"], timeout=PATIENCE * 1000)
        tab.go(page, "")
        expect(page.locator("#gateway")).to_contain_text(f"pid {other.process.pid}")
        expect(state_of(page, "two")).to_have_text("connected")
        assert other.row("one")["incarnation"] == 1
        page.close()  # before its server is, which the browser would tell
    tab.errors.clear()


def test_a_call_is_counted_as_soon_as_it_has_ended(room_of: Callable[..., Room], tab: Tab) -> None:
    room = room_of({"one": rough()})
    page = tab.open(room)
    expect(figure(page, "calls since")).to_have_text("0")
    room.client().call("one_echo", text="up")
    expect(page.get_by_role("img", name=re.compile("^Last 15 minutes: 1 call$"))).to_have_count(1)
    # What counts seconds may be one late, for its clock is the gateway's. A bar of the strip has fifteen.
    page.wait_for_timeout(1500)
    assert figure(page, "calls since").inner_text() == "1"


def test_a_call_that_hangs_is_open_until_its_server_dies(room_of: Callable[..., Room], tab: Tab) -> None:
    room = room_of({"one": rough()})
    hangs = hanging_call(room.client())
    page = tab.open(room, "calls")
    row = page.get_by_role("table", name="Open calls").get_by_role("row").filter(has_text="one_erase")
    expect(row).to_contain_text("in flight")
    row.get_by_role("link", name="one_erase").click()
    panel = page.get_by_role("complementary")
    expect(panel).to_contain_text("has not ended")
    expect(panel.get_by_role("region", name="Arguments")).to_contain_text("600")
    os.kill(room.row("one")["pid"], signal.SIGKILL)
    hangs.join(PATIENCE)
    expect(page.get_by_text("No call is open.")).to_be_visible()
    expect(panel.get_by_role("region", name="Error")).to_contain_text("may have run")
    expect(panel).not_to_contain_text("has not ended")


def test_a_session_that_has_ended_is_gone_with_what_was_its_own(
    room_of: Callable[..., Room], tab: Tab
) -> None:
    room = room_of({"own": rough(isolation="per_session")})
    client = room.client()
    client.call("own_echo", text="up")
    page = tab.open(room)
    expect(state_of(page, "own")).to_have_text("connected")
    tab.go(page, "sessions")
    expect(page.get_by_role("table", name="Sessions and clients")).to_contain_text("http-")
    client.send("DELETE", "/mcp")
    expect(page.get_by_text("No client is there.")).to_be_visible()
    tab.go(page, "")
    expect(state_of(page, "own")).to_have_text("cached")
    tab.go(page, "tree")
    items = page.get_by_role("list", name="The room").get_by_role("listitem")
    expect(items).to_have_count(3)  # the room, its supervisor, the server
    expect(items.last).to_contain_text("own")


def test_what_a_server_writes_meanwhile_is_shown(room_of: Callable[..., Room], tab: Tab) -> None:
    room = room_of({"one": rough()})
    client = room.client()
    client.call("one_echo", text="up")
    page = tab.open(room, "servers/one")
    stderr = page.get_by_role("region", name="Standard error")
    expect(stderr).to_contain_text("It has begun.")
    client.call("one_echo", text="half way", aloud=True)
    expect(stderr).to_contain_text("half way")


def test_a_tool_that_is_looked_at_says_when_it_has_changed(
    room_of: Callable[..., Room], tab: Tab, tmp_path: Path
) -> None:
    about = tmp_path / "about"
    room, client = room_that_bills(room_of, about)
    page = tab.open(room, "tools/one_pay")
    form = page.get_by_role("form", name="Call")
    form.get_by_label("text").fill("half typed")
    about.write_text("Pays all bills, once.")
    os.kill(room.row("one")["pid"], signal.SIGKILL)
    room.until(lambda: room.row("one")["failure"])
    client.call("one_echo", text="again")
    expect(page.get_by_text("It is not as it is shown here any more.")).to_be_visible()
    expect(form.get_by_label("text")).to_have_value("half typed")
    page.get_by_role("button", name="Show it as it is now").click()
    expect(page.get_by_text("it cannot be called until you have accepted that")).to_be_visible()
    expect(form).to_have_count(0)


def test_a_timeline_has_what_began_before_it(room_of: Callable[..., Room]) -> None:
    room = room_of({"one": rough()})
    room.client().call("one_echo", text="up")

    def spans() -> list[dict[str, Any]]:
        lanes = room.ask("/page/timeline?seconds=1")["lanes"]
        return [span for lane in lanes if lane.get("server") == "one" for span in lane["spans"]]

    only = room.until(lambda: [] if len(found := spans()) != 1 else found)
    assert (only[0]["name"], only[0]["isCut"]) == ("connected", True)


def test_the_page_of_an_owner_stays_with_its_gateway(room_of: Callable[..., Room], tab: Tab) -> None:
    room = room_of({"one": rough()})
    room.client().call("one_echo", text="up")
    with owner_page(room) as url:
        page = tab.open_at(url)
        page.get_by_role("link", name="one", exact=True).click()
        page.get_by_role("button", name="Drain").wait_for()
        with room.anew():
            stale = page.locator("#stale")
            expect(stale).to_contain_text(f"The gateway {room.process.pid} has ended.")
            expect(stale).to_contain_text("To see one that runs now: greenroom page --config")
            expect(page.locator("#gateway")).to_contain_text(f"pid {room.process.pid}")
            expect(page.get_by_role("button", name="Drain")).to_have_count(0)
        page.close()
    tab.errors.clear()  # the browser tells of each try


def test_what_has_not_come_is_loading(room_of: Callable[..., Room], tab: Tab) -> None:
    room = room_of({"one": rough()})
    room.client().call("one_echo", text="up")
    page = tab.open(room)
    held: list[Route] = []
    page.route("**/page/watch", lambda route: held.append(route))
    page.route("**/page/tools*", lambda route: held.append(route))
    page.reload()
    main = page.get_by_role("main")
    expect(main).to_have_text("Loading …")
    tab.go(page, "tools")
    expect(main).to_have_text("Loading …")
    held.pop(0).continue_()
    expect(page.get_by_role("heading", name="Tools and skills")).to_be_visible()
    assert "No tool is known." not in main.inner_text()
    expect(main).to_contain_text("Loading …")
    held.pop(0).continue_()
    expect(main).to_contain_text("one_echo")
    expect(main).not_to_contain_text("Loading …")


def test_a_section_is_never_seen_without_what_is_known(room_of: Callable[..., Room], tab: Tab) -> None:
    page = tab.open(room_of({"one": rough()}), "sessions")
    expect(page.get_by_text("No client is there.")).to_be_visible()
    first = page.evaluate("""() => new Promise(done => {
        addEventListener("hashchange", () => done(document.querySelector("main").innerText), {once: true})
        location.hash = "#/"
    })""")
    assert "Nothing waits for you." in first


def test_slots_of_sessions_are_counted_and_a_server_has_one_state(
    room_of: Callable[..., Room], tab: Tab
) -> None:
    room = room_of({"one": rough(), "own": rough(isolation="per_session")})
    client = room.client()
    client.call("own_echo", text="up")
    page = tab.open(room)
    expect(figure(page, "sessions’ connections")).to_have_text(re.compile("^1 of "))
    expect(state_of(page, "own")).to_have_text("connected")
    tab.go(page, "tree")
    items = page.get_by_role("list", name="The room").get_by_role("listitem")
    own = items.filter(has=page.get_by_role("link", name="own", exact=True))
    expect(own.locator(".state")).to_have_text("connected")


def test_the_tools_are_counted_as_their_badge_says(room_of: Callable[..., Room], tab: Tab) -> None:
    room = room_of({"one": rough(), "all": whole("all")})
    client = room.client()
    client.call("one_echo", text="up")
    page = tab.open(room)
    page.get_by_role("link", name="all", exact=True).click()
    page.get_by_role("complementary").get_by_role("button", name="Connect").click()
    expect(state_of(page, "all")).to_have_text("connected")
    tools = sum(row["toolCount"] for row in room.status()["servers"])
    tab.go(page, "tools")
    expect(page.locator("nav a[aria-current]")).to_have_text(f"Tools{tools}")
    expect(page.get_by_role("main").locator("header p").first).to_have_text(
        re.compile(rf"^{tools} tools and \d+ skills, prompts and resources$")
    )


def test_a_failure_is_told_once_and_whole(room_of: Callable[..., Room], tab: Tab) -> None:
    text = "RuntimeError: the variable DATABASE_URL is not set, see the manual of this server"
    ends = f"import sys; sys.stderr.write({text!r}); sys.exit(3)"
    room = room_of({"one": {"command": sys.executable, "args": ["-S", "-c", ends]}})
    page = tab.open(room, "servers/one")
    page.get_by_role("button", name="Connect").click()
    expect(state_of(page, "one")).to_have_text("failed")
    page.keyboard.press("Escape")
    main = page.get_by_role("main")
    for width in (1400, 820, 360):
        page.set_viewport_size({"width": width, "height": 800})
        expect(main).to_contain_text(text)
        assert main.inner_text().count("RuntimeError") == 1, width
        want = page.get_by_role("listitem").filter(has_text="one has failed").bounding_box()
        assert want is not None
        assert want["height"] < 160, width  # five lines of the reason, on a phone
    tab.errors.clear()  # a refused request is told by the browser itself


def test_a_phone_has_its_head_in_one_line(room_of: Callable[..., Room], tab: Tab) -> None:
    page = tab.open(room_of({"one": rough()}), token=READER, viewport={"width": 360, "height": 740})
    expect(page.locator("#link")).to_have_text("live, read only")
    boxes = [
        page.locator(at).bounding_box() for at in (".brand svg", ".brand span >> nth=0", "#link", "#help")
    ]
    assert all(boxes)
    middles = [box["y"] + box["height"] / 2 for box in boxes if box is not None]
    assert max(middles) - min(middles) < 4, "the logo, the name and the state stand beside each other"
    ends = [box["x"] + box["width"] for box in boxes if box is not None]
    assert ends == sorted(ends)
    assert ends[-1] <= 360


def test_a_phone_has_every_section_and_the_reason_of_a_failure(
    room_of: Callable[..., Room], tab: Tab
) -> None:
    room = room_of({"one": rough(), "gone": {"command": "/there/is/none"}}, approve="destructive")
    page = tab.open(room, viewport={"width": 360, "height": 740})
    room.client().call("gone_anything")
    why = page.get_by_role("region", name="Needs you").get_by_text("/there/is/none")
    expect(why).to_be_visible()
    assert why.evaluate("node => node.scrollHeight <= node.clientHeight + 1"), "no line of it is cut off"
    links = page.get_by_role("navigation", name="Sections").get_by_role("link")
    boxes = [link.bounding_box() for link in links.all()]
    assert len(boxes) >= 8
    assert all(box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 360 for box in boxes)
    page.evaluate("document.body.style.setProperty('min-height', '4000px'); scrollTo(0, 1500)")
    expect(links.last).to_be_in_viewport()


def test_a_failure_before_the_start_that_goes_on_is_told_as_that(
    room_of: Callable[..., Room], tab: Tab
) -> None:
    hangs = {"command": sys.executable, "args": ["-c", "input(); input()"], "connectTimeoutMs": 3000}
    room = room_of({"one": hangs})
    page = tab.open(room, "servers/one")
    room.client().call("one_anything")
    page.get_by_role("complementary").get_by_role("button", name="Connect").click()
    expect(state_of(page, "one")).to_have_text("connecting")
    expect(page.get_by_role("complementary")).to_contain_text("the last start failed: no answer")
    page.locator(".said p.bad").first.wait_for()
    tab.errors.clear()  # a refused request is told by the browser itself


def test_a_phone_has_the_whole_name_of_an_open_call(room_of: Callable[..., Room], tab: Tab) -> None:
    room = room_of({"one": rough("a_tool_with_a_name_that_says_what_it_does", "Waits.")})
    page = tab.open(room, viewport={"width": 360, "height": 740})
    client = room.client()
    client.call("one_echo", text="up")
    thread = client.begin("one_a_tool_with_a_name_that_says_what_it_does", text="a", seconds=600)
    tab.go(page, "servers/one")
    cell = page.get_by_role("table", name="Open calls").get_by_role("cell").first
    expect(cell).to_have_text("one_a_tool_with_a_name_that_says_what_it_does")
    assert cell.evaluate("node => node.scrollWidth <= node.clientWidth"), "it is not cut off"
    os.kill(room.row("one")["pid"], signal.SIGKILL)
    thread.join(PATIENCE)


def test_moments_of_a_timeline_that_is_zoomed_in_differ(room_of: Callable[..., Room], tab: Tab) -> None:
    room = room_of({"one": rough()})
    room.client().call("one_slow", seconds=0.3)
    page = tab.open(room, "timeline")
    page.get_by_role("button", name="one_slow").first.wait_for()
    for _ in range(6):
        page.get_by_role("button", name="Zoom in", exact=True).click()
    ticks = page.locator(".ticks span").all_inner_texts()
    assert len(set(ticks)) == len(ticks) == 5, ticks


def test_a_call_that_has_ended_says_its_outcome_once(room_of: Callable[..., Room], tab: Tab) -> None:
    room = room_of({"one": rough()})
    room.client().call("one_echo", text="a")
    page = tab.open(room, "calls")
    row = page.get_by_role("table", name="Ended calls").get_by_role("row").filter(has_text="one_echo")
    for width in (1400, 900, 360):
        page.set_viewport_size({"width": width, "height": 800})
        expect(row).to_be_visible()
        assert row.inner_text().count("result") == 1, width
