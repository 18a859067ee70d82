"""`greenroom serve --expose direct` as a real process, compared field by field with the servers themselves.

A client of either era before servers of either era. What the client sees of a server is what a raw client sees of it,
names apart; what it cannot see of two servers at once has a name of ours.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.whole import (
    LISTS,
    META,
    WHOLE,
    RawClient,
    direct_door,
    raw_server,
    whole,
    without_stamps,
)

SERVERS = {"old": whole("old"), "new": whole("new", "--modern")}
ERAS = pytest.mark.parametrize("modern", [False, True], ids=["2025-11-25", "2026-07-28"])
NAME = {"tools": "name", "resources": "uri", "resourceTemplates": "uriTemplate", "prompts": "name"}


PROMPT = {"type": "ref/prompt", "name": "greet"}
TEMPLATE = {"type": "ref/resource", "uri": "{s}://day/{{day}}"}


def of_server(server: str, kind: str, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items as the door names them, sorted."""
    prefix = {"tools": f"{server}_", "prompts": f"{server}_"}.get(kind, "")
    named = [{**item, NAME[kind]: prefix + item[NAME[kind]]} for item in items]
    for item in named:
        if item[NAME[kind]].startswith("shared://"):
            item[NAME[kind]] = f"greenroom://{server}/{item[NAME[kind]]}"
    return sorted(named, key=lambda item: item[NAME[kind]])


def catalogued(door: RawClient) -> None:
    """Wait until the first run has asked every server what it has."""
    door.wait(lambda: len(door.list_all("tools")) >= 26, "the catalogue")


def shared_once(door: RawClient, method: str) -> int:
    return len(door.heard(method))


@ERAS
def test_every_list_and_answer_is_the_servers_own(modern: bool, tmp_path: Path) -> None:
    requests: list[tuple[str, dict[str, Any]]] = [
        ("resources/read", {"uri": "{s}://two"}),
        ("resources/read", {"uri": "{s}://day/monday"}),
        ("prompts/get", {"name": "greet", "arguments": {"day": "friday"}}),
        ("tools/call", {"name": "odd"}),
        ("tools/call", {"name": "echo", "arguments": {"text": "é\u2028", "n": 10**30, "x": [1.5, None]}}),
        ("tools/call", {"name": "refuse", "arguments": {"code": -31234}}),
        ("tools/call", {"name": "echo", "arguments": {}, "_meta": {"x-trace": {"id": 7}}}),
        ("completion/complete", {"ref": PROMPT, "argument": {"name": "day", "value": "s"}}),
        ("completion/complete", {"ref": TEMPLATE, "argument": {"name": "day", "value": ""}, "context": {}}),
    ]  # fmt: skip
    with direct_door(tmp_path, SERVERS, modern=modern) as door:
        hello = door.initialize()
        known = {"tools", "resources", "prompts", "completions", "logging", "extensions"}
        assert set(hello["capabilities"]) == (known if modern else known | {"tasks"})
        catalogued(door)
        ours: dict[str, list[dict[str, Any]]] = {kind: [] for kind in LISTS}
        for server, entry in SERVERS.items():
            with raw_server(entry, modern=server == "new") as raw:
                raw.initialize()
                for kind in LISTS:
                    ours[kind] += of_server(server, kind, raw.list_all(kind))
                for method, params in requests:
                    theirs = _ask(raw, method, _spelled(params, server))
                    answer = _ask(door, method, _spelled(params, server, f"{server}_"))
                    if modern and "result" in answer:
                        assert answer["result"]["resultType"] == "complete"
                        assert answer["result"]["_meta"][META + "serverInfo"]["name"] == "greenroom"
                    if "error" in theirs:  # says whose it is, too
                        theirs["error"]["message"] = f"[{server}] {theirs['error']['message']}"
                        theirs["error"]["data"] = {
                            **(theirs["error"].get("data") or {}),
                            "greenroom/server": server,
                        }
                    if (
                        not modern and params.get("name") == "odd"
                    ):  # its structure is a list, new in 2026-07-28
                        said = theirs["result"]["structuredContent"]
                        theirs["result"]["structuredContent"] = {"result": said}
                    assert _plain(answer) == _plain(theirs), (server, method, params)
        for kind in LISTS:
            assert door.list_all(kind) == sorted(ours[kind], key=lambda item: item[NAME[kind]])


def _ask(client: RawClient, method: str, params: dict[str, Any]) -> dict[str, Any]:
    meta = params.get("_meta", {})
    return client.ask(method, {key: value for key, value in params.items() if key != "_meta"}, **meta)


def _spelled(params: dict[str, Any], server: str, prefix: str = "") -> dict[str, Any]:
    """The request as `server` knows it; with a `prefix`, as the door does."""
    said = {**params}
    if "uri" in said:
        said["uri"] = said["uri"].format(s=server)
    if "name" in said:
        said["name"] = prefix + said["name"]
    if "ref" in said:
        said["ref"] = _spelled(said["ref"], server, prefix)
    return said


def _plain(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without what belongs to one era, and without the error code that changed its number."""
    if "error" in answer:
        return answer
    found = without_stamps(answer["result"])
    found.pop("resultType", None)
    found.pop("x-ref", None)  # the server says the reference back as it knows it
    return found


def test_an_older_client_sees_nothing_of_the_newer_era(tmp_path: Path) -> None:
    with direct_door(tmp_path, SERVERS) as door:
        door.initialize()
        catalogued(door)
        read = door.result("resources/read", {"uri": "new://one"})
        assert {"resultType", "ttlMs", "cacheScope", "_meta"}.isdisjoint(read)
        assert set(door.result("tools/list")) == {"tools"}


def test_listing_starts_nothing_and_order_is_stable(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    servers = {"old": whole("old", "--log", str(log))}
    with direct_door(tmp_path, servers) as door:
        door.initialize()
        door.wait(lambda: len(door.list_all("tools")) == 13, "the catalogue")
        first = {kind: door.list_all(kind) for kind in LISTS}
    log.unlink()
    with direct_door(tmp_path, servers) as door:
        door.initialize()
        assert {kind: door.list_all(kind) for kind in LISTS} == first
        assert not log.exists()


def test_chosen_tools_only(tmp_path: Path) -> None:
    servers = {
        "old": {**whole("old"), "directTools": ["echo", "st*"]},
        "new": {**whole("new", "--modern"), "directTools": False},
        "all": whole("all"),
    }
    with direct_door(tmp_path, servers, directTools=["heard"]) as door:
        door.initialize()
        names = ["all_heard", "old_echo", "old_state", "old_steps"]
        door.wait(lambda: [tool["name"] for tool in door.list_all("tools")] == names, "the chosen tools")
        for name in ("new_echo", "old_log"):
            assert door.call(name)["result"]["_meta"]["greenroom/error"] == {"error": "tool_not_found"}
        assert "result" in door.call("old_echo")


def test_a_name_nobody_has_connects_whoever_may_have_it(tmp_path: Path) -> None:
    servers = {"old": whole("old"), "off": whole("off") | {"disabled": True}, "odd": {"command": 7}}
    with direct_door(tmp_path, servers, bootstrap=False) as door:
        door.initialize()
        assert door.list_all("tools") == []
        assert door.call("old_echo", {"text": "hi"})["result"]["structuredContent"] == {"text": "hi"}
        assert door.result("prompts/get", {"name": "old_plain"})["description"] == "from old"
        refused = door.call("old_zebra")["result"]
        assert refused["isError"]
        assert "old_zebra" in refused["content"][0]["text"]
        assert door.call("zebra")["result"]["isError"]
        for name, reason in ({"off_echo": "is disabled", "odd_echo": "cannot be used"}).items():
            assert f'Server "{name[:3]}" {reason}' in door.call(name)["result"]["content"][0]["text"]
            assert reason in door.ask("prompts/get", {"name": name})["error"]["message"]
        assert door.ask("prompts/get", {"name": "zebra"})["error"]["code"] == -32602
        assert door.call("old-echo", {})["result"]["structuredContent"] == {}


def test_uris_that_collide_are_told_apart_and_others_are_not_touched(tmp_path: Path) -> None:
    with direct_door(tmp_path, SERVERS) as door:
        door.initialize()
        catalogued(door)
        uris = [item["uri"] for item in door.list_all("resources")]
        assert uris == [
            "greenroom://new/shared://same", "greenroom://old/shared://same",
            "new://one", "new://two", "old://one", "old://two",
        ]  # fmt: skip
        for server in SERVERS:
            read = door.result("resources/read", {"uri": f"greenroom://{server}/shared://same"})
            assert read["contents"][0]["text"] == f"{server} says shared://same"
        error = door.ask("resources/read", {"uri": "shared://same"})["error"]
        assert "greenroom://old/shared://same" in error["message"]
        assert door.ask("resources/read", {"uri": "zebra://"})["error"]["code"] == -32002


@ERAS
def test_progress_and_cancellation_go_both_ways(modern: bool, tmp_path: Path) -> None:
    with direct_door(tmp_path, SERVERS, modern=modern) as door:
        door.initialize()
        for server in SERVERS:
            door.call(f"{server}_steps", {"count": 3}, progressToken=server)
            progress = [each["params"] for each in door.heard("notifications/progress")]
            told = [each for each in progress if each["progressToken"] == server]
            assert [each["progress"] for each in told] == [1, 2, 3]
            assert all(each["x-vendor"] for each in told)
            number = door.send("tools/call", {"name": f"{server}_sleep", "arguments": {"seconds": 60}})
            door.tell("notifications/cancelled", {"requestId": number})
            heard = f"{server}_heard"
            door.wait(
                lambda heard=heard: (
                    "notifications/cancelled" in door.call(heard)["result"]["structuredContent"]["methods"]
                ),
                "the cancellation to arrive",
            )
            assert not door.is_answered(number)
        assert len(door.heard("notifications/progress")) == 3 * len(SERVERS)


@ERAS
def test_t24_changes_are_announced_once_each_and_only_if_real(modern: bool, tmp_path: Path) -> None:
    news = "notifications/tools/list_changed"
    with direct_door(tmp_path, SERVERS, modern=modern) as door:
        door.initialize()
        catalogued(door)
        number = 0
        if modern:
            number = door.send("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
            ack = "notifications/subscriptions/acknowledged"
            door.wait(lambda: bool(door.heard(ack)), "the acknowledgement")
            assert door.heard(ack)[0]["params"]["notifications"] == {"toolsListChanged": True}
        for server in SERVERS:
            door.call(f"{server}_echo")
        for server in SERVERS:
            heard = -1
            while heard < (heard := shared_once(door, news)):  # what the first lists bring comes late
                door.read(0.5)
            before = heard
            names = [tool["name"] for tool in door.list_all("tools")]
            for _ in range(3):
                door.call(f"{server}_same")
            door.call(f"{server}_grow")
            door.wait(lambda before=before: shared_once(door, news) > before, "the news")
            after = [tool["name"] for tool in door.list_all("tools")]
            assert set(after) - set(names) == {f"{server}_grown_13"}
            door.call(f"{server}_same")
            door.read(0.5)
            assert shared_once(door, news) == before + 1
            if modern:
                assert door.heard(news)[0]["params"]["_meta"] == {META + "subscriptionId": number}
            # None is lost: as many changes as there are, the last is in the list that follows the last news.
            for _ in range(5):
                door.call(f"{server}_grow")
            last = f"{server}_grown_18"
            door.wait(lambda last=last: last in [tool["name"] for tool in door.list_all("tools")], "the last")


@ERAS
def test_updates_of_watched_resources_arrive_under_the_clients_uri(modern: bool, tmp_path: Path) -> None:
    uris, news = (
        {server: f"greenroom://{server}/shared://same" for server in SERVERS},
        "notifications/resources/updated",
    )
    with direct_door(tmp_path, SERVERS, modern=modern) as door:
        door.initialize()
        catalogued(door)
        number, watched = 0, list(uris.values())
        if modern:
            asked = {"notifications": {"resourceSubscriptions": [*watched, "zebra://"]}}
            number = door.send("subscriptions/listen", asked)
            ack = "notifications/subscriptions/acknowledged"
            door.wait(lambda: bool(door.heard(ack)), "the acknowledgement")
            assert door.heard(ack)[0]["params"]["notifications"] == {"resourceSubscriptions": watched}
        else:
            for uri in watched:
                assert door.result("resources/subscribe", {"uri": uri}) == {}

        def touched(server: str) -> list[dict[str, Any]]:
            door.call(f"{server}_touch", {"uri": "shared://same"})
            return [each["params"] for each in door.heard(news) if each["params"]["uri"] == uris[server]]

        for server in SERVERS:
            door.wait(lambda server=server: bool(touched(server)), "an update")
        for update in [each["params"] for each in door.heard(news)]:
            assert update["uri"] in watched
            assert update["x-vendor"]
            assert not modern or update["_meta"] == {META + "subscriptionId": number}
        if modern:
            door.tell("notifications/cancelled", {"requestId": number})
        else:
            for uri in watched:
                assert door.result("resources/unsubscribe", {"uri": uri}) == {}
        before = len(door.heard(news))
        for server in SERVERS:
            door.call(f"{server}_echo")
            touched(server)
        assert len(door.heard(news)) == before


@ERAS
def test_logs_from_the_level_the_client_asked_for(modern: bool, tmp_path: Path) -> None:
    with direct_door(tmp_path, SERVERS, modern=modern) as door:
        door.initialize()
        for server in SERVERS:
            door.call(f"{server}_echo")
        meta = {META + "logLevel": "error"} if modern else {}
        if not modern:
            assert door.result("logging/setLevel", {"level": "error"}) == {}
            assert door.ask("logging/setLevel", {"level": "loud"})["error"]["code"] == -32602
        for server in SERVERS:
            for level in ("info", "critical"):
                door.call(f"{server}_log", {"level": level, "text": f"{server} {level}"}, **meta)
        logs = [each["params"] for each in door.heard("notifications/message")]
        assert [(log["level"], log["data"], log["x-vendor"]["kept"][2]) for log in logs] == [
            ("critical", {"text": f"{server} critical"}, "é") for server in SERVERS
        ]


def test_an_older_client_is_asked_whatever_the_server_speaks(tmp_path: Path) -> None:
    said = {"action": "accept", "content": {"n": 1}, "x-more": [None]}
    form = {"message": "Sure?", "requestedSchema": {"type": "object"}, "x-odd": {"kept": True}}
    with direct_door(tmp_path, SERVERS) as door:
        door.answers["elicitation/create"] = lambda _params: {"result": said}
        door.answers["sampling/createMessage"] = lambda _params: {
            "error": {"code": -1, "message": "no", "data": [1]}
        }
        door.initialize(elicitation={}, sampling={})
        for server in SERVERS:
            answer = door.call(f"{server}_ask", {"method": "elicitation/create", "params": form})
            assert answer["result"]["structuredContent"] == {"result": said}
            signed = {"message": f"[{server}] Sure?", "_meta": {"greenroom/server": server}}
            assert door.asked[-1]["params"] == form | signed
        answer = door.call("old_ask", {"method": "sampling/createMessage"})
        assert answer["result"]["structuredContent"]["error"] == {"code": -1, "message": "no", "data": [1]}
        refused = door.call("new_ask", {"method": "sampling/createMessage"})["result"]
        assert refused["isError"]
        assert refused["_meta"]["greenroom/error"]["error"] == "input_refused"
        assert "no (-1)" in refused["content"][0]["text"]
        # What it did not declare is not asked of it.
        asked = len(door.asked)
        answer = door.call("old_ask", {"method": "roots/list"})
        assert answer["result"]["structuredContent"]["error"]["code"] == -32601
        assert len(door.asked) == asked


@pytest.mark.parametrize("modern", [False, True])
def test_a_servers_request_loses_credentials_where_its_results_do_and_its_form_stays(
    tmp_path: Path, modern: bool
) -> None:
    schema = {"type": "object", "properties": {"password": {"type": "string", "title": "hidden-12345"}}}
    form = {"message": "Is hidden-12345 right?", "requestedSchema": schema}
    own = {"env": {"API_TOKEN": "hidden-12345"}, "scrub": "all"}
    with direct_door(
        tmp_path, {name: {**entry, **own} for name, entry in SERVERS.items()}, modern=modern
    ) as door:
        door.answers["elicitation/create"] = lambda _params: {"result": {"action": "decline"}}
        door.initialize(elicitation={"form": {}})
        for server in SERVERS:
            params = {"name": f"{server}_ask", "arguments": {"method": "elicitation/create", "params": form}}
            if modern:
                ((_, request),) = door.result("tools/call", params)["inputRequests"].items()
                asked = request["params"]
            else:
                door.result("tools/call", params)
                asked = door.asked[-1]["params"]
            assert asked["message"] == f"[{server}] Is *** right?"
            assert asked["requestedSchema"] == schema


def test_a_newer_client_is_answered_that_input_is_needed_whatever_the_server_speaks(tmp_path: Path) -> None:
    form = {"message": "Sure?", "requestedSchema": {"type": "object"}}
    said = {"action": "accept", "content": {"n": 1}, "x-more": [None]}
    with direct_door(tmp_path, SERVERS, modern=True) as door:
        door.initialize(elicitation={"form": {}})
        states: dict[str, str] = {}
        for server in SERVERS:
            params = {"name": f"{server}_ask", "arguments": {"method": "elicitation/create", "params": form}}
            first = door.result("tools/call", params)
            assert first["resultType"] == "input_required"
            ((key, request),) = first["inputRequests"].items()
            signed = {"message": f"[{server}] Sure?", "_meta": {"greenroom/server": server}}
            assert request == {"method": "elicitation/create", "params": form | signed}
            states[server] = first["requestState"]
            again = {**params, "inputResponses": {key: said}, "requestState": first["requestState"]}
            final = door.result("tools/call", again)
            assert final["resultType"] == "complete"
            assert final["structuredContent"] == {"result": said}
        # State is good for what it was given for, and a suspended call is resumed once.
        for state in (states["new"], states["old"], "zebra"):
            params = {"name": "new_state", "arguments": {}, "requestState": state, "inputResponses": {}}
            assert door.ask("tools/call", params)["error"]["code"] == -32602


def test_a_client_that_cannot_answer_is_not_asked_in_either_era(tmp_path: Path) -> None:
    with direct_door(tmp_path, SERVERS, modern=True) as door:
        door.initialize()
        answer = door.call("old_ask", {"method": "sampling/createMessage"})["result"]
        assert answer["structuredContent"]["error"]["code"] == -32601


def test_an_eager_server_learns_what_a_late_client_can_do(tmp_path: Path) -> None:
    servers = {"old": {**whole("old"), "lifecycle": "eager"}}
    with direct_door(tmp_path, servers) as door:
        door.wait(lambda: len(door.list_all("tools")) == 13, "it to be met")
        door.answers["roots/list"] = lambda _params: {"result": {"roots": [{"uri": "file:///x"}]}}
        door.initialize(roots={"listChanged": True})
        answer = door.call("old_ask", {"method": "roots/list"})
        assert answer["result"]["structuredContent"]["result"] == {"roots": [{"uri": "file:///x"}]}
        door.tell("notifications/roots/list_changed")
        heard = door.call("old_heard")["result"]["structuredContent"]["methods"]
        assert "notifications/roots/list_changed" in heard


def test_what_becomes_of_a_server_is_told_to_models_and_programs(tmp_path: Path) -> None:
    broken = {"command": "/no/such/program"}
    with direct_door(tmp_path, {"gone": broken, "old": whole("old")}, bootstrap=False) as door:
        door.initialize()
        result = door.call("gone_echo")["result"]
        assert result["isError"]
        assert result["_meta"]["greenroom/error"] == {
            "error": "connect_failed",
            "server": "gone",
            "reach": "not_sent",
        }
        error = door.ask("prompts/get", {"name": "gone_greet"})["error"]
        assert error["code"] == -32603
        assert error["data"]["server"] == "gone"
        assert door.call("old_echo")["result"]


BAD = (
    ("tools/call", {"name": 7}), ("tools/call", {}), ("resources/read", {"uri": None}),
    ("prompts/get", {"name": []}), ("completion/complete", {"ref": "x"}),
    ("completion/complete", {"ref": {"type": "ref/zebra"}}), ("resources/subscribe", {}),
    ("logging/setLevel", {"level": 1}), ("tools/call", {"name": "old_echo", "_meta": 1}),
)  # fmt: skip


def test_bad_requests_cost_themselves(tmp_path: Path) -> None:
    with direct_door(tmp_path, {"old": whole("old")}, bootstrap=False) as door:
        door.initialize()
        for method, params in BAD:
            assert door.ask(method, params)["error"]["code"] == -32602, (method, params)
            assert door.result("ping") == {}


RESTLESS = '''
import os, sys
sys.path.insert(0, {folder!r})
import whole

class Restless(whole.WholeServer):
    """It reports a change of what is subscribed to in the same write as its answer to the request."""

    held = None

    def send(self, message):
        if self.held is None:
            super().send(message)
        else:
            self.held.append(message)

    def take(self, message):
        self.held = []
        super().take(message)
        if message.get("method") == "resources/subscribe":
            self.tool_touch(0, message["params"], {{}})
        if message.get("method") == "subscriptions/listen":
            for uri in message["params"]["notifications"].get("resourceSubscriptions", ()):
                self.tool_touch(0, {{"uri": uri}}, {{}})
        lines = [whole.json.dumps({{"jsonrpc": "2.0", **each}}) + "\\n" for each in self.held]
        self.held = None
        os.write(1, "".join(lines).encode())

Restless({name!r}, modern={modern!r}, log="").serve()
'''


@ERAS
def test_an_update_right_behind_the_answer_to_a_subscription_arrives_behind_ours(
    modern: bool, tmp_path: Path
) -> None:
    servers: dict[str, Any] = {}
    for server in SERVERS:
        script = tmp_path / f"{server}.py"
        script.write_text(RESTLESS.format(folder=str(WHOLE.parent), name=server, modern=server == "new"))
        servers[server] = {"command": sys.executable, "args": ["-S", str(script)]}
    news, ack = "notifications/resources/updated", "notifications/subscriptions/acknowledged"
    with direct_door(tmp_path, servers, modern=modern) as door:
        door.initialize()
        door.wait(lambda: len(door.list_all("resources")) >= 4, "the catalogue")
        for count, uri in enumerate(f"{server}://day/{part}" for server in servers for part in range(5)):
            if modern:
                door.send("subscriptions/listen", {"notifications": {"resourceSubscriptions": [uri]}})
                door.wait(lambda count=count: len(door.heard(ack)) > count, "the acknowledgement")
            else:
                assert door.result("resources/subscribe", {"uri": uri}) == {}
            door.wait(lambda uri=uri: uri in [each["params"]["uri"] for each in door.heard(news)], "the news")
            told = [each["method"] for each in door.told if each["method"] in (news, ack)]
            assert not modern or told.index(ack) < told.index(news)
