"""What a person sees and does on the page, in a real browser, with a real gateway and real child processes."""

from __future__ import annotations

import os
import re
import signal
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from tests.page.looking import OWNER, READER, Room, Tab, owner_page, room_that_bills, rough
from tests.support.patience import PATIENCE

WORDS = {"needs-auth": "needs auth", "not-connected": "not connected"}
ROWS = '[role="table"][aria-label="Servers"] .rows > *'
COLUMNS = """rows => rows.map(row => [
    row.querySelector("a").textContent, ...[...row.children].slice(1).map(cell => cell.textContent)])"""


def state_of(page: Page, server: str) -> Any:
    """The cell with the state of a server in the table."""
    row = (
        page.get_by_role("table", name="Servers")
        .get_by_role("row")
        .filter(has=page.get_by_role("link", name=server, exact=True))
    )
    return row.get_by_role("cell").nth(1)


def test_what_it_shows_is_what_the_status_says(room_of: Callable[..., Room], tab: Tab) -> None:
    entries = {
        "one": rough(),
        "two": rough(),
        "off": rough(disabled=True),
        "gone": {"command": "/there/is/none"},
    }
    room = room_of(entries)
    page = tab.open(room)
    client = room.client()
    client.call("one_echo", text="hello")
    client.call("two_echo", text="hello")
    page.get_by_role("link", name="gone", exact=True).click()
    page.get_by_role("complementary").get_by_role("button", name="Connect").click()
    expect(state_of(page, "gone")).to_have_text("failed")
    page.keyboard.press("Escape")
    page.get_by_role("alert").or_(page.locator(".said p.bad")).first.wait_for()
    tab.errors.clear()  # a refused request is told by the browser itself

    def is_same() -> bool:
        status = room.status()
        seen = {name: cells for name, *cells in page.eval_on_selector_all(ROWS, COLUMNS)}
        said = {
            row["name"]: [
                WORDS.get(row["status"], row["status"]),
                str(row["inFlight"]),
                str(row["queued"]),
                str(row["toolCount"]) if row["cached"] else "",
                str(row["incarnation"]),
            ]
            for row in status["servers"]
        }
        shown = {name: [cells[0], *cells[3:]] for name, cells in seen.items()}
        figures = page.locator(".figures > div").all_inner_texts()
        connected = f"{status['connectedCount']} of {len(said) - status['disabledCount']}"
        return shown == said and any(connected in each for each in figures)

    room.until(is_same)
    last = page.get_by_role("table", name="Servers").get_by_role("columnheader").last
    expect(last).to_have_text(
        re.compile("^Incarnation")
    )  # it is no count of starts: the first one may fail for long


def test_a_crash_is_seen_within_a_second(room_of: Callable[..., Room], tab: Tab) -> None:
    room = room_of({"one": rough(), "two": rough()})
    page = tab.open(room)
    client = room.client()
    took: list[float] = []
    for _ in range(3):
        client.call("one_echo", text="up")
        expect(state_of(page, "one")).to_have_text("connected")
        pid = room.row("one")["pid"]
        page.evaluate("""() => {
            const rows = [...document.querySelectorAll(".rows > *")]
            const row = rows.find(row => row.querySelector("a").textContent === "one")
            window.left = new Promise(done => new MutationObserver(() => {
                if (row.children[1].textContent !== "connected") done(Date.now() / 1000)
            }).observe(row, {subtree: true, childList: true, characterData: true}))
        }""")
        killed = time.time()
        os.kill(pid, signal.SIGKILL)
        took.append(page.evaluate("() => window.left") - killed)
        expect(state_of(page, "one")).to_have_text(re.compile("lost|failed"))
        room.until(lambda: room.row("one")["retryIn"] is None)
    assert min(took) < 1.0, took


def test_a_button_drains(room_of: Callable[..., Room], tab: Tab) -> None:
    room = room_of({"one": rough()})
    page = tab.open(room)
    room.client().call("one_echo", text="up")
    expect(state_of(page, "one")).to_have_text("connected")
    page.get_by_role("link", name="one", exact=True).click()
    panel = page.get_by_role("complementary")
    panel.get_by_role("button", name="Drain").click()
    expect(state_of(page, "one")).to_have_text("down")
    assert room.row("one")["down"]
    panel.get_by_role("button", name="Connect").click()
    expect(state_of(page, "one")).to_have_text("connected")
    assert room.row("one")["state"] == "connected"


def test_the_keyboard_alone_drains(room_of: Callable[..., Room], tab: Tab) -> None:
    room = room_of({f"server-{number}": rough() for number in range(30)})
    page = tab.open(room)
    room.client().call("server-2_echo", text="up")
    expect(state_of(page, "server-2")).to_have_text("connected")

    def focused() -> str:
        return page.evaluate("() => document.activeElement.textContent.trim()")

    def tab_to(text: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            if focused() == text:
                return
        pytest.fail(f"Tab never came to {text}")

    tab_to("server-0")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert focused() == "server-2"
    page.keyboard.press("Enter")
    expect(page.get_by_role("complementary", name="server-2")).to_be_visible()
    tab_to("Drain")
    page.keyboard.press("Enter")
    room.until(lambda: room.row("server-2")["down"])
    page.keyboard.press("Escape")
    expect(page.get_by_role("complementary")).to_have_count(0)
    room.until(lambda: focused() == "server-2")
    page.keyboard.press("End")
    assert focused() == "server-29"
    page.keyboard.press("/")
    page.keyboard.type("server-17")
    expect(page.get_by_role("table", name="Servers").get_by_role("row")).to_have_count(2)


def test_an_approval_lets_the_held_call_go(room_of: Callable[..., Room], tab: Tab) -> None:
    room = room_of({"one": rough()}, approve="destructive")
    page = tab.open(room)
    client = room.client()
    client.call("one_echo", text="up")
    thread = client.begin("one_erase", text="all of it")
    ask = page.get_by_role("article", name="May one_erase be called?")
    expect(ask).to_contain_text("all of it")
    assert client.answers == []
    ask.get_by_role("button", name="Allow once").click()
    thread.join(PATIENCE)
    assert client.answers[0]["result"]["content"][0]["text"] == "all of it"

    thread = client.begin("one_erase", text="more")
    ask = page.get_by_role("article").filter(has_text="more")
    ask.get_by_role("button", name="Refuse").click()
    thread.join(PATIENCE)
    assert "more" not in str(client.answers[1].get("result", {}).get("content"))


def test_a_changed_definition_is_shown_beside_what_it_was_and_accepted(
    room_of: Callable[..., Room], tab: Tab, tmp_path: Path
) -> None:
    about = tmp_path / "about"
    room, client = room_that_bills(room_of, about)
    about.write_text("<b>Pays</b> all bills, once.")
    page = tab.open(room, "servers/one")
    page.get_by_role("button", name="Restart").click()
    page.get_by_role("link", name=re.compile("Changes")).click()
    shown = page.get_by_role("article").filter(has_text="one")
    lines = shown.get_by_role("list", name="What has changed").get_by_role("listitem")
    expect(lines).to_have_count(2)  # of the title and of the description
    line = lines.filter(has_text="description")
    expect(line).to_contain_text("before: Pays a bill, once.now: <b>Pays</b> all bills, once.")
    expect(line.locator("mark")).to_have_text(["Pays a bill,", "<b>Pays</b> all bills,"])
    assert client.call("one_pay", text="a")["result"]["isError"]
    shown.get_by_role("button", name="Accept what is shown").click()
    expect(page.get_by_text("Nothing has changed.")).to_be_visible()
    assert not client.call("one_pay", text="a")["result"].get("isError")


def test_a_changed_definition_can_stay_blocked(
    room_of: Callable[..., Room], tab: Tab, tmp_path: Path
) -> None:
    about = tmp_path / "about"
    room, client = room_that_bills(room_of, about)
    about.write_text("Pays all bills, once.")
    page = tab.open(room, "servers/one")
    page.get_by_role("button", name="Restart").click()
    page.get_by_role("link", name=re.compile("Changes")).click()
    shown = page.get_by_role("article").filter(has_text="one")
    shown.get_by_role("button", name="Keep it blocked").click()
    expect(shown.get_by_role("button", name="Stays blocked")).to_be_visible()
    tab.go(page, "")
    expect(page.get_by_text("Nothing waits for you.").first).to_be_visible()
    assert client.call("one_pay", text="a")["result"]["isError"]
    tab.go(page, "changes")
    page.get_by_role("button", name="Disable one").click()
    room.until(lambda: room.row("one")["disabled"])


def test_an_ended_call_opens_with_its_error_and_arguments(room_of: Callable[..., Room], tab: Tab) -> None:
    room = room_of({"one": rough()})
    client = room.client()
    client.call("one_echo", text="for the owner")
    client.call("one_die")
    page = tab.open(room, "calls")
    ended = page.get_by_role("table", name="Ended calls")
    ended.get_by_role("link", name="one_die").click()
    panel = page.get_by_role("complementary")
    expect(panel.get_by_role("region", name="Error")).to_contain_text("exited with code 7")
    expect(panel.get_by_text("incarnation")).to_be_visible()
    page.keyboard.press("Escape")
    ended.get_by_role("link", name="one_echo").click()
    expect(panel.get_by_role("region", name="Arguments")).to_contain_text("for the owner")
    expect(panel.get_by_text("with the wait")).to_be_visible()  # for its start; the table has both apart


def test_what_a_tool_called_an_error_before_anybody_looked_has_failed(
    room_of: Callable[..., Room], tab: Tab
) -> None:
    room = room_of({"one": rough()})
    client = room.client()
    for fails in (True, False, True):
        client.call("one_echo", text="no", fails=fails)
    page = tab.open(room, "calls")
    ended = page.get_by_role("table", name="Ended calls").get_by_role("row")
    failed = ended.filter(has_text="tool’s error")
    expect(failed).to_have_count(2)
    client.call("one_echo", text="no", fails=True)
    expect(failed).to_have_count(3)
    page.reload()
    expect(failed).to_have_count(3)
    tab.go(page, "timeline")
    expect(page.locator(".lanes .error").first).to_be_attached()


def test_what_was_said_in_a_call_is_not_shown_to_a_reader(room_of: Callable[..., Room], tab: Tab) -> None:
    room = room_of({"one": rough()})
    room.client().call("one_echo", text="for the owner")
    page = tab.open(room, "calls", token=READER)
    page.get_by_role("table", name="Ended calls").get_by_role("link", name="one_echo").click()
    panel = page.get_by_role("complementary")
    expect(panel.get_by_text("shown to an owner alone")).to_be_visible()
    expect(panel.get_by_text("for the owner")).to_have_count(0)


def test_what_has_failed_stands_first(room_of: Callable[..., Room], tab: Tab) -> None:
    room = room_of({"one": rough(), "zero": {"command": "/there/is/none"}})
    page = tab.open(room, "servers/zero")
    page.get_by_role("complementary").get_by_role("button", name="Connect").click()
    expect(state_of(page, "zero")).to_have_text("failed")
    expect(page.locator(f"{ROWS} a").first).to_have_text("zero")
    page.locator(".said p.bad").first.wait_for()
    tab.errors.clear()  # a refused request is told by the browser itself


def test_an_address_that_leads_nowhere_says_so(room_of: Callable[..., Room], tab: Tab) -> None:
    page = tab.open(room_of({"one": rough()}), "no-such-place")
    expect(page.get_by_text("This page has no “no-such-place”.")).to_be_visible()
    page.get_by_role("link", name="To the overview").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()


def test_the_keys_are_listed(room_of: Callable[..., Room], tab: Tab) -> None:
    page = tab.open(room_of({"one": rough()}))
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Keys")).to_have_count(0)


def test_the_timeline_is_live(room_of: Callable[..., Room], tab: Tab) -> None:
    room = room_of({"one": rough()})
    client = room.client()
    client.call("one_echo", text="a")
    page = tab.open(room, "timeline")
    expect(page.get_by_role("button", name=re.compile("one_echo")).first).to_be_attached()
    client.call("one_erase", text="a")
    expect(page.get_by_role("button", name=re.compile("one_erase")).first).to_be_attached(
        timeout=PATIENCE * 1000
    )


def test_the_tree_is_what_the_command_says(room_of: Callable[..., Room], tab: Tab) -> None:
    room = room_of({"one": rough(), "own": rough(isolation="per_session"), "off": rough(disabled=True)})
    client = room.client()
    client.call("one_echo", text="a")
    page = tab.open(room, "tree", token=READER)
    items = page.get_by_role("list", name="The room").get_by_role("listitem")
    expect(items).to_have_count(5)
    expect(items.nth(1)).to_contain_text("supervisor open maxConnections 1/")
    expect(items.filter(has=page.get_by_role("link", name="one", exact=True))).to_contain_text(
        "idle eviction in"
    )
    expect(items.filter(has=page.get_by_role("link", name="off", exact=True))).to_contain_text("disabled")
    client.call("own_echo", text="a")
    expect(items).to_have_count(6, timeout=PATIENCE * 1000)
    expect(items.nth(4)).to_contain_text(re.compile(r"session \S+ connected"))


def test_a_reader_may_not_act(room_of: Callable[..., Room], tab: Tab) -> None:
    room = room_of({"one": rough()})
    page = tab.open(room, "servers/one", token=READER)
    expect(page.get_by_role("complementary", name="one")).to_be_visible()
    expect(page.get_by_text("read only")).to_be_visible()
    expect(page.get_by_role("button", name="Connect", exact=True)).to_have_count(0)
    room.client().call("one_echo", text="up")
    tab.go(page, "tools/one_echo")
    expect(page.get_by_text(f"greenroom call --config {room.home}/greenroom.json")).to_be_visible()


def test_a_token_is_asked_for_and_leaves_the_address(room_of: Callable[..., Room], tab: Tab) -> None:
    room = room_of({"one": rough()})
    page = tab.open(room, token="", ready=False)
    page.get_by_label("Token").fill(OWNER)
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_role("link", name="one", exact=True)).to_be_visible()
    page.goto(f"{room.url}/#token={OWNER}")
    expect(page.get_by_role("link", name="one", exact=True)).to_be_visible()
    assert "token" not in page.url
    assert page.context.cookies() == []
    assert [error for error in tab.errors if "401" not in error] == []
    tab.errors.clear()  # the browser itself tells of the 401


def test_a_thousand_servers_scroll_as_two_hundred_do(
    room_of: Callable[..., Room], tab: Tab, browser: Any
) -> None:
    def frames(count: int) -> tuple[float, int]:
        own = Tab(browser)
        # Most are disabled: the gateway does not start a thousand processes to learn what they have.
        entries = {f"server-{number}": rough(disabled=number % 50 != 0) for number in range(count)}
        room = room_of(entries, expose="proxy")
        room.until(lambda: all(row["cached"] or row["disabled"] for row in room.status()["servers"]))
        page = own.open(room)
        page.get_by_role("link", name="server-0", exact=True).wait_for()
        said = page.evaluate("""async () => {
            const table = document.querySelector(".table")
            const gaps = []
            let [last, y, blank, most] = [performance.now(), 0, 0, 0]
            for (let frame = 0; frame < 90; frame++) {
                scrollTo(0, (y += 60))
                await new Promise(requestAnimationFrame)
                await new Promise(requestAnimationFrame)
                const at = performance.now()
                gaps.push((at - last) / 2)
                last = at
                const rows = table.querySelectorAll(".rows > *")
                most = Math.max(most, rows.length)
                const [first, end] = [rows[0].getBoundingClientRect(), rows[rows.length - 1].getBoundingClientRect()]
                const whole = table.getBoundingClientRect()
                const isShort = end.bottom < Math.min(innerHeight, whole.bottom) - 60
                if (first.top > Math.max(100, whole.top + 60) || isShort) blank += 1
            }
            return {gaps, blank, most}
        }""")
        own.close()
        assert said["blank"] == 0
        return statistics.median(said["gaps"]), said["most"]

    few, _ = frames(200)
    many, rows = frames(1_000)
    print(f"\nmedian frame: {few:.1f} ms with 200 servers, {many:.1f} ms with 1,000")
    assert rows < 100
    assert many <= max(25.0, 1.5 * few + 5.0)


HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "\u202eevil\u2066",
    "javascript:alert(1)",
    "{{7*7}}${7*7}",
    "A" * 10_240,
)


MADE = "main script, main img, aside script, aside img, .rows b, aside b, .list b"
PLACES = (
    *("", "servers/one", f"servers/{HOSTILE[0]}", "tools", f"tools/{HOSTILE[1]}"),
    *("calls", "timeline", "tree", "changes", "sessions"),
)


def test_hostile_names_and_descriptions_stay_text(room_of: Callable[..., Room], tab: Tab) -> None:
    pairs = [
        part for number, text in enumerate(HOSTILE) for part in (f"t{number}" if number > 3 else text, text)
    ]
    odd = {"__proto__": rough(), "<b>bold</b>": {"command": HOSTILE[1]}, "a" * 300: rough()}
    room = room_of({"one": rough(*pairs), **odd})
    page = tab.open(room)
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    room.client().call("one_echo", text=HOSTILE[0])
    for where in (
        "",
        "servers/one",
        f"servers/{HOSTILE[0]}",
        "tools",
        "calls",
        "timeline",
        "tree",
        f"tools/{HOSTILE[1]}",
        "changes",
        "sessions",
    ):
        tab.go(page, where)
        page.wait_for_timeout(300)
        assert page.locator(MADE).count() == 0
    tab.go(page, "tools")
    expect(page.locator(".list")).to_contain_text("<script>alert(1)</script>")
    assert "\u202e" not in page.locator("body").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    tab.errors[:] = [
        error for error in tab.errors if "40" not in error
    ]  # what does not exist is told by the browser


def test_the_policy_holds(room_of: Callable[..., Room], tab: Tab) -> None:
    room = room_of({"one": rough()})
    page = tab.open(room)
    said = page.evaluate("""async () => {
        const tried = {}
        const script = document.createElement("script")
        try {
            script.textContent = "window.ran = true"
            document.body.append(script)
        } catch { tried.script = "refused" }
        try { document.body.innerHTML = "<p>x</p>" } catch { tried.html = "refused" }
        try { await fetch("http://127.0.0.1:9/") } catch { tried.fetch = "refused" }
        const style = document.createElement("style")
        style.textContent = "body { display: none }"
        document.head.append(style)
        tried.style = getComputedStyle(document.body).display
        return {...tried, ran: window.ran === true}
    }""")
    assert said["ran"] is False
    assert said["html"] == said["fetch"] == "refused"
    assert said["style"] != "none"
    tab.errors.clear()  # each refusal is told
    tab.requests[:] = [url for url in tab.requests if url != "http://127.0.0.1:9/"]


def test_nothing_is_asked_while_nobody_looks(room_of: Callable[..., Room], tab: Tab) -> None:
    room = room_of({"one": rough()})
    page = tab.open(room)
    room.client().call("one_echo", text="up")
    expect(state_of(page, "one")).to_have_text("connected")
    ended: list[str] = []
    page.on("requestfailed", lambda request: ended.append(request.url))
    hide = """hidden => {
        Object.defineProperty(document, "hidden", {configurable: true, get: () => hidden})
        document.dispatchEvent(new Event("visibilitychange"))
    }"""
    page.evaluate(hide, True)
    room.until(lambda: page.wait_for_timeout(50) or ended)
    assert ended == [f"{room.url}/page/watch"]
    before = len(tab.requests)
    os.kill(room.row("one")["pid"], signal.SIGKILL)
    room.until(lambda: room.row("one")["failure"])
    page.wait_for_timeout(1500)
    assert len(tab.requests) == before
    expect(state_of(page, "one")).to_have_text("connected")
    page.evaluate(hide, False)
    expect(state_of(page, "one")).to_have_text("lost")


def test_a_tool_is_called_with_its_form(room_of: Callable[..., Room], tab: Tab) -> None:
    room = room_of({"one": rough()})
    page = tab.open(room)
    room.client().call("one_echo", text="up")
    tab.go(page, "tools")
    page.get_by_role("searchbox", name="Search tools").fill("again")
    page.get_by_role("link", name="one_echo").click()
    page.get_by_role("button", name="Call").click()
    expect(page.get_by_role("alert")).to_have_text("text is needed.")
    page.get_by_label("text needed").fill("<b>hello</b>")
    page.get_by_role("button", name="Call").click()
    expect(page.locator(".tool form pre")).to_have_text("<b>hello</b>")


def test_a_failed_server_says_when_it_is_tried_again(room_of: Callable[..., Room], tab: Tab) -> None:
    ends = {"command": sys.executable, "args": ["-c", "raise SystemExit(3)"]}
    page = tab.open(room_of({"one": ends}, bootstrap=True))
    expect(state_of(page, "one")).to_have_text("failed")
    expect(page.get_by_role("main")).to_contain_text("next try in")


def test_why_a_server_failed_is_seen_with_its_last_words(room_of: Callable[..., Room], tab: Tab) -> None:
    room = room_of({"one": rough()})
    page = tab.open(room)
    client = room.client()
    client.call("one_echo", text="up")
    client.call("one_die")
    expect(state_of(page, "one")).to_have_text("lost")
    page.get_by_role("link", name="What to do").click()
    panel = page.get_by_role("complementary", name="one")
    expect(panel.get_by_role("region", name="Standard error")).to_contain_text("It ends itself now.")
    expect(panel.get_by_role("region", name="Last 15 minutes")).to_contain_text("lost")
    expect(panel.get_by_role("table", name="Latency by tool")).to_contain_text("one_die")


def test_it_says_when_the_gateway_has_gone(room_of: Callable[..., Room], tab: Tab) -> None:
    room = room_of({"one": rough()})
    page = tab.open(room)
    expect(state_of(page, "one")).to_be_visible()
    room.process.terminate()
    expect(page.get_by_text("The gateway does not answer.")).to_be_visible(timeout=20_000)
    expect(page.get_by_text("lost, next try in")).to_be_visible()
    tab.errors.clear()  # the browser tells of each try


def test_greenroom_page_opens_it_for_its_owner(room_of: Callable[..., Room], tab: Tab) -> None:
    room = room_of({"one": rough()})
    with owner_page(room) as url:
        page = tab.open_at(url)
        page.get_by_role("link", name="one", exact=True).click()
        assert "token" not in page.url
        panel = page.get_by_role("complementary", name="one")
        panel.get_by_role("button", name="Drain").or_(
            panel.get_by_role("button", name="Connect")
        ).first.click()
        room.until(lambda: room.row("one")["down"] or room.row("one")["state"] == "connected")
        page.close()
