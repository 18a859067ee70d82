"""The numbers of a gateway agree, whoever tells them: the page, `/status`, `/metrics`, the traces, the audit file and
the events. Some calls while a few children are killed, ten minutes of both with `make soak`; and what is secret is in
none of them."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import httpx2
from tests.gateway.test_http_serve import TOKEN, Served, call, served
from tests.support.gateway import PATIENCE, faulty, logged_pids
from tests.support.http_door import NO_CERTIFICATES
from tests.support.otlp import Collector, collector
from tests.support.patience import until

SECRET: Final = "sk-live-51a3f9c2e7d84b6fa0"
SERVERS: Final = ("one", "two", "three")
CALLERS: Final = 6
SECONDS: Final = 600.0 if "GREENROOM_SOAK" in os.environ else 0.0  # at least
CALLS: Final = 100  # at least
Told = Counter[tuple[str, str]]  # by server and outcome


class Page(threading.Thread):
    """Somebody who looks at the page all the time."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url = url
        self.said: list[str] = []
        self.ended: Told = Counter()
        self.rows: dict[str, Any] = {}
        self.missed = 0

    def run(self) -> None:
        headers = {"authorization": f"Bearer {TOKEN}"}
        with (
            suppress(httpx2.HTTPError),  # the gateway ends
            httpx2.Client(trust_env=False, timeout=PATIENCE, verify=NO_CERTIFICATES) as client,
            client.stream("GET", self.url, headers=headers) as answer,
        ):
            event = ""
            for line in answer.iter_lines():
                if line.startswith("event: "):
                    event = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    self.said.append(line)
                    self._take(event, json.loads(line.removeprefix("data: ")))

    def _take(self, event: str, said: Any) -> None:
        if event == "snapshot":
            self.rows = {row["name"]: row for row in said["servers"]}
        elif event == "change":
            servers = said.get("servers", {})
            self.rows.update({row["name"]: row for row in servers.get("changed", ())})
        elif event == "events":
            self.ended += ended_in(said)
        elif event == "lagged":
            self.missed += said["missed"]


def ended_in(records: Iterable[Any]) -> Told:
    return Counter((each["server"], each["outcome"]) for each in records if each.get("event") == "CallEnded")


def states(rows: Iterable[Any]) -> dict[str, tuple[str, int]]:
    return {row["name"]: (row["state"], row["incarnation"]) for row in rows}


def lines_of(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def counted(metrics: str) -> Told:
    found = re.findall(r"^greenroom_calls_total\{(.*)\} ([\d.]+)$", metrics, re.MULTILINE)
    labels = ((dict(re.findall(r'(\w+)="([^"]*)"', names)), count) for names, count in found)
    return Counter({(said["server"], said["outcome"]): int(float(count)) for said, count in labels})


def use(one: Served, number: int, over: threading.Event, answered: list[int]) -> None:
    """Call whatever until it is over, and count at `number` how many calls were answered."""
    dice, client = random.Random(number), one.session()
    while not over.is_set():
        server = dice.choice(SERVERS)
        tool, arguments = dice.choice(
            [("echo", {"text": f"{SECRET} it"}), ("echo", {}), ("sleep", {"seconds": 0.2}), ("nothing", {})]
        )
        answer = one.post(call(f"{server}_{tool}", **arguments), **client)
        assert answer.status_code == 200, answer.text
        answered[number] += 1


def strike(folder: Path, over: threading.Event) -> None:
    """Kill a child now and then."""
    dice = random.Random(0)
    while not over.wait(dice.uniform(0.1, 0.5)):
        pids = sorted(pid for pid in logged_pids(folder) if Path(f"/proc/{pid}").exists())
        if pids:
            with suppress(ProcessLookupError):
                os.kill(dice.choice(pids), signal.SIGKILL)


def spans_of_calls(taken: Collector) -> int:
    ours = (span for span in taken.spans if span.service == "greenroom")
    return sum(span.kind == "SERVER" and span.name.startswith("tools/call") for span in ours)


def test_everybody_tells_the_same_numbers_and_no_secret(tmp_path: Path) -> None:
    servers = {name: {**faulty(tmp_path, name), "env": {"API_KEY": SECRET}} for name in SERVERS}
    audit, events, over = tmp_path / "audit.jsonl", tmp_path / "events.jsonl", threading.Event()
    answered = [0] * CALLERS
    with collector() as taken:
        options = ("--audit", str(audit), "--events", str(events), "--otlp", taken.url)
        with served(tmp_path, servers, *options, isolation="persistent", http={"metrics": True}) as one:
            base = one.url.removesuffix("/mcp")
            page = Page(f"{base}/page/watch")
            page.start()
            until(lambda: page.rows, "the page")
            threads = [
                threading.Thread(target=use, args=(one, number, over, answered)) for number in range(CALLERS)
            ]
            threads.append(threading.Thread(target=strike, args=(tmp_path, over)))
            for thread in threads:
                thread.start()
            time.sleep(SECONDS)

            def is_enough() -> bool:
                assert all(thread.is_alive() for thread in threads), "a caller has met what is not an answer"
                went_wrong = any(outcome != "result" for _, outcome in list(page.ended))
                return sum(answered) >= CALLS and (went_wrong or page.missed > 0)

            try:
                until(is_enough, "a call that went wrong")
            finally:
                over.set()
            for thread in threads:
                thread.join(PATIENCE)

            def is_still() -> bool:
                rows = one.http.get(f"{base}/status").json()["servers"]
                return not any(row["inFlight"] or row["queued"] for row in rows)

            until(is_still, "the last calls")
            numbers = one.http.get(f"{base}/metrics").text
            until(lambda: page.ended.total() == counted(numbers).total() or page.missed, "the page")

            # The last child that was killed may still be starting: both are read anew, until they are at rest.
            def agreed() -> Any:
                status = one.http.get(f"{base}/status").json()
                return status if states(status["servers"]) == states(page.rows.values()) else None

            status = until(agreed, "the rows")
            one.process.send_signal(signal.SIGTERM)
            assert one.process.wait(PATIENCE) == 0
        until(lambda: spans_of_calls(taken) >= sum(answered), "the traces")

    told = ended_in(lines_of(events))
    lines = [each for each in lines_of(audit) if each["kind"] == "call"]
    accepted = [each for each in lines if "call" in each]
    assert any(outcome != "result" for _, outcome in told), "nothing went wrong: this shows nothing"
    assert counted(numbers) == told
    assert Counter((each["server"], each["outcome"]) for each in accepted) == told
    assert len(lines) == sum(answered) == spans_of_calls(taken)
    assert page.missed or page.ended == told

    texts = {
        "the page": "\n".join(page.said),
        "/status": json.dumps(status),
        "/metrics": numbers,
        "the audit file": audit.read_text(),
        "the events": events.read_text(),
        "the log": (tmp_path / "stderr.txt").read_text(),
        "the traces": b"\n".join(taken.bodies).decode("latin-1"),
    }
    for secret in (SECRET, TOKEN):
        assert [where for where, text in texts.items() if secret in text] == []
