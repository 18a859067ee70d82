"""No planted credential comes out of a result that is scrubbed, and what is not scrubbed is not changed."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.gateway.test_conversations import asking_room, echo, talking
from tests.gateway.test_meta import use
from tests.support import in_real_time, in_virtual_time
from tests.support.asking import AskingServer
from tests.support.gateway import HELLO, serve
from tests.support.lister import lister, tool
from tests.support.rooms import open_room
from tests.support.rows import for_each

from greenroom import Greenroom
from greenroom.config.credentials import SecretValue, is_common
from greenroom.config.model import Scrub
from greenroom.config.scrubbing import (
    _STEP,
    _TOKEN,
    STARS,
    Secrets,
    is_suspect,
    scrubbed,
    scrubbed_text,
    stands_alone,
)
from greenroom.safety.scrubber import scrubbed_params, scrubbed_progress, scrubbed_server_request
from greenroom.testing.fake_servers import FakeServer
from greenroom.testing.room_inside import RoomInside

WEB_TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N"
TOKENS = [
    WEB_TOKEN, "sk-abcdefghijklmnopqrstuvwx", "sk-proj-ab_cdefghijklmnopqrst", "ghp_abcdefghijklmnopqrst0123",
    "gho_abcdefghijklmnopqrst0123", "github_pat_11ABCDEFG0abcdefghijkl", "xoxb-123456789012-abcdef",
    "xoxp-1234567890-a",
    "AKIA0123456789ABCDEF", "ASIAABCDEFGHIJKLMNOP", "AIzaSyA0123456789abcdefghijklmnopqrstuv",
    "glpat-abcdefghij0123456789",
    "npm_abcdefghijklmnopqrstuvwxyz0123456789", "hf_abcdefghijklmnopqrstuvwxyz0123", "sk_live_abcdefghij0123456789",
]  # fmt: skip
KNOWN = 'k<n>öw"n\\ se/cret\n'
SECRETS = Secrets([SecretValue("TOKEN", KNOWN)]).in_json()
WRITERS = {
    "plain": json.dumps,
    "text": lambda value: json.dumps(value, ensure_ascii=False),
    "php": lambda value: json.dumps(value).replace("/", "\\/"),
    "go": lambda value: json.dumps(value, ensure_ascii=False).replace("<", "\\u003c").replace(">", "\\u003e"),
}
FIELDS = [
    "password",
    "Secret",
    "token",
    "api_key",
    "apiKey",
    "access_token",
    "refreshToken",
    "Authorization",
    "private-key",
    "x-api-key",
    "aws_secret_access_key",
]
around = st.sampled_from(
    ["", " ", "x ", "\n", "=", "'", ": ", "…", '"', "\\", "Bearer ", "\t", "%3D", "\x1b[0m", "\x1b[1;32m"]
)


@for_each("credential", [*TOKENS, KNOWN, "content", "structuredContent"])
@for_each("write", [*WRITERS.values()], ids=[*WRITERS])
def test_a_credential_in_a_name_is_removed_and_the_names_of_the_protocol_stay(
    write: Any, credential: str
) -> None:
    known = Secrets([SecretValue("PASSWORD", each) for each in (KNOWN, credential)]).in_json()
    said = {f"is {credential} so": {"a": [{f"{credential} or": credential}]}}
    raw = write(
        {"content": [{"type": "text", "text": f"{credential} !"}], "structuredContent": said}
    ).encode()
    result = json.loads(scrubbed(raw, known))
    assert result.keys() == {"content", "structuredContent"}
    assert credential not in json.dumps([*result["content"][0].values(), result["structuredContent"]])


@st.composite
def planted(draw: Any) -> tuple[Any, str]:
    """A JSON value with a credential somewhere in it."""
    field = draw(st.booleans())
    word = draw(st.text(min_size=8).filter(lambda text: "[REDACTED" not in text)) if field else ""
    credential: str = word or draw(st.sampled_from([*TOKENS, KNOWN]))
    value: Any = (
        {draw(st.sampled_from(FIELDS)): credential} if field else draw(around) + credential + draw(around)
    )
    for _ in range(draw(st.integers(0, 4))):
        how = draw(st.sampled_from(["list", "object", "text", "indented"]))
        if how == "list":
            value = [draw(st.text(max_size=3)), value]
        elif how == "object":
            value = {draw(st.text(max_size=3)): value, "n": 1}
        elif _depth(value) < 2:
            write = draw(st.sampled_from([*WRITERS.values()]))
            value = json.dumps(value, indent=1) if how == "indented" else write(value)
    return value, credential


def _depth(value: Any) -> int:
    """How many texts with JSON are inside one another."""
    return max((1 + _depth(json.loads(each)) for each in _texts(value) if _is_json(each)), default=0)


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict | list | str)
    except ValueError:
        return False


def _texts(value: Any) -> list[str]:
    """Every text and name in a value, also in JSON in its texts."""
    if isinstance(value, str):
        return [value, *(_texts(json.loads(value)) if _is_json(value) else ())]
    if isinstance(value, dict):
        return [each for pair in value.items() for one in pair for each in _texts(one)]
    return [each for one in value for each in _texts(one)] if isinstance(value, list) else []


@given(planted(), st.sampled_from([*WRITERS.values()]))
@example(({"t": json.dumps({"log": "a\nsk-abcdefghijklmnopqrst"})}, "sk-abcdefghijklmnopqrst"), json.dumps)
@example(("…sk-abcdefghijklmnopqrst", "sk-abcdefghijklmnopqrst"), json.dumps)
@example(({"t": json.dumps(json.dumps({"token": 'ab"c\\'}))}, 'ab"c\\'), json.dumps)
def test_no_planted_credential_comes_out(plant: tuple[Any, str], write: Any) -> None:
    value, credential = plant
    found = scrubbed(write(value).encode(errors="surrogatepass"), SECRETS, by_name=True)
    said = json.loads(found.decode(errors="surrogatepass"))
    assert not [text for text in _texts(said) if credential in text and text not in FIELDS]


def dotnet(value: Any) -> str:
    """As .NET writes JSON by itself: all that means something in HTML, and `+`, has a number."""
    found = re.compile(r'\\\\|\\"|\\u([0-9a-f]{4})|[&\'+<>`]')
    return found.sub(
        lambda each: each[0] if each[0] == "\\\\" else f"\\u{(each[1] or f'{ord(each[0][-1]):04x}').upper()}",
        json.dumps(value),
    )


@for_each("secret", [KNOWN, "q8Zt+Lm2<xW9&kP4rT7==", "it's`a\"secret\\u00e9é"])
@for_each("inner", [json.dumps, dotnet])
@for_each("outer", [*WRITERS.values(), dotnet])
def test_a_known_secret_is_found_as_dotnet_writes_it(secret: str, inner: Any, outer: Any) -> None:
    known = Secrets([SecretValue("TOKEN", secret)])
    for said in (dotnet({"a": [secret]}), outer({"a": dotnet([secret])}), outer([inner([dotnet(secret)])])):
        found = known.scrub(said.encode())
        assert STARS in found
        assert secret not in _texts(json.loads(found))


@given(st.from_regex(_TOKEN.pattern), st.sampled_from([*WRITERS.values()]))
def test_whatever_looks_like_a_token_has_a_mark(token: bytes, write: Any) -> None:
    assert is_suspect(token.decode("latin-1"))
    raw = write({"said": token.decode("latin-1")}).encode()
    long = raw.rjust(_STEP)
    assert scrubbed(long).lstrip() == scrubbed(raw)


plain = st.recursive(
    st.none() | st.integers() | st.text('abc -_.\\"sk/:{}é', max_size=40),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "token_count", "tokens"]), inner)
    ),
)


@given(plain, st.sampled_from([*WRITERS.values()]))
@example(
    {"token": "", "tokens": ["a"], "properties": {"token": {"type": "string"}}, "required": ["token"]},
    json.dumps,
)
@example(
    "risk-assessment-of-everything-here task-1234567890-1234567890 disk-a-b-c-d-e-f-g-h-i-j-k-l", json.dumps
)
@example("https://host/eyJhbGciOiJIUzI1NiJ9/a.b.c and file.name.with.dots.and_a_long_word_in_it", json.dumps)
def test_what_has_no_credential_is_the_same_object(value: Any, write: Any) -> None:
    raw = write(value).encode()
    assert scrubbed(raw, SECRETS) is raw


@for_each(
    ("secret", "value", "left"),
    [
        ("nabc12345", ["a\nabc12345", "\\nabc12345", "nabc12345"], ["a\nabc12345", "\\***", "***"]),
        (
            "12345678",
            {"n": [12345678, -0.1234567812, 7], "t": "12345678"},
            {"n": ["***", -0.1234567812, 7], "t": "***"},
        ),
        ("12345678", ["", 'a", 12345678, "b', 12345678], ["", 'a", ***, "b', "***"]),
        ("1,2,3,4", {"list": [1, 2, 3, 4], "t": "1,2,3,4"}, {"list": [1, 2, 3, 4], "t": "***"}),
        (
            "123456" * 5,
            [int("123456" * 700), "x" * 2 * _STEP, int("123456" * 5)],
            ["***", "x" * 2 * _STEP, "***"],
        ),
    ],
)
def test_what_is_left_is_json_again(secret: str, value: Any, left: Any) -> None:
    known = Secrets([SecretValue("PASSWORD", secret)]).in_json()
    raw = json.dumps(value, separators=(",", ":")).encode()
    assert json.loads(scrubbed(raw, known)) == left


@given(
    st.sampled_from(["123456", "nabc12", "u00410", '"12345', "\\12345", "1e1111", "truetrue", "[],[],"]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.sampled_from([123456, 1234567, -12.123456]),
        lambda inner: (
            st.lists(inner | st.text('\\n"abc123456u0041,[]\n\t', max_size=20), max_size=4)
            | st.dictionaries(st.text("\\n1", max_size=3), inner)
        ),
    ),
    st.sampled_from([*WRITERS.values()]),
)
def test_what_is_left_of_any_value_is_json(secret: str, value: Any, write: Any) -> None:
    known = Secrets([SecretValue("PASSWORD", secret)]).in_json()
    for said in (write(value), write([write(value)])):
        texts = _texts(json.loads(scrubbed(said.encode(), known)))
        assert not [text for text in texts if _says(text, secret)]


def _says(text: str, secret: str) -> bool:
    """Whether the secret is in the text: one that may be part of a word or a number, by itself."""
    raw, sought = text.encode(errors="surrogatepass"), secret.encode()
    places = [at for at in range(len(raw)) if raw.startswith(sought, at)]
    return any(not is_common(secret) or stands_alone(raw, at, at + len(sought)) for at in places)


def test_a_large_result_of_numbers_is_searched_once() -> None:
    many = (
        b"["
        + b",".join([b'"a",123456'] * 20_000)
        + b","
        + b"123456" * 100_000
        + b',"'
        + rb"\nabc12" * 50_000
        + b'"]'
    )
    assert scrubbed(many, (b"123456", b"nabc12")).count(b'"***"') == 20_000


@for_each("credential", TOKENS)
@for_each("filler", ["lorem ipsum ", "x" * 30 + " ", "\\"])
def test_a_large_text_is_searched_in_pieces_and_none_is_missed(credential: str, filler: str) -> None:
    text = (filler * (_STEP // len(filler) + 2))[: _STEP - len(credential) // 2]
    for cut in range(0, len(credential) + 3, 5):
        said = text[: len(text) - cut] + f' {credential} "token":"a\\"b" {credential}.'
        found = scrubbed(said.encode(), by_name=True).decode()
        assert credential not in found
        assert '"token":"[REDACTED:VALUE]"' in found


@for_each("write", WRITERS.values())
def test_base64_in_which_the_form_of_a_token_is_found_by_chance_stays(write: Any) -> None:
    """A file of three megabytes was damaged one time in thirteen: a key of Google has four fixed characters."""
    token = "AIzaSyA0123456789abcdefghijklmnopqrstuv"
    data = "Qm/k+9" * 400 + token + "x7+P/d" * 400
    raw = write({"content": [{"type": "image", "data": data, "mimeType": "image/png"}]}).encode()
    assert scrubbed(raw) == raw
    lines = "\n".join([token] * 200)
    assert token.encode() not in scrubbed(write({"text": lines}).encode())


def test_a_known_secret_is_removed_wherever_one_slice_of_a_large_result_ends_in_it() -> None:
    """It looks like no token: only its bytes tell it."""
    secret = b"winter morning"
    for cut in range(len(secret) + 1):
        before = b'["' + b"x" * (32_768 - 2 - cut)
        assert scrubbed(before + secret + b'!"]', (secret,)) == before + b'***!"]', cut


@for_each("write", WRITERS.values(), ids=WRITERS)
@for_each("token", ["npm_abcdefghijklmnopqrstuvwxyz0123456789", "rk_live_abcdefghij0123456789"])
def test_a_letter_behind_a_backslash_of_the_text_is_no_escape(token: str, write: Any) -> None:
    for before in ("\\", "\n", "C:\\", "\\\\", "\\\n"):
        found = scrubbed(write([before + token]).encode())
        assert json.loads(found) == [f"{before}[REDACTED:KEY]"]
    pm = "pm_abcdefghijklmnopqrstuvwxyz0123456789"
    assert json.loads(scrubbed(write(["\n" + pm]).encode())) == ["\n" + pm]


def test_a_text_of_ours_loses_them_too() -> None:
    assert scrubbed_text(f"HTTP 400 ({TOKENS[1]})") == "HTTP 400 ([REDACTED:KEY])"
    assert Secrets().without(f'the server said {{"password": "q7Zk2Wm9x4TrB8Lp"}} {WEB_TOKEN}') == (
        'the server said {"password": "[REDACTED:VALUE]"} [REDACTED:JWT]'
    )
    said = 'unexpected {"token": "identifier"} at line 3'
    assert Secrets().without(said) == said


# ---- real servers -------------------------------------------------------------------------------------------------

OWN = "value-of-the-servers-own-secret"
LONG = f"{TOKENS[3]} {OWN}\n" * 3_000
SAID: dict[str, Any] = {
    "content": [{"type": "text", "text": json.dumps({"key": TOKENS[1], "own": OWN, "password": "hunter2!"})}],
    "structuredContent": {"own": OWN, "nested": {"token": "t0ken"}},
    "_meta": {"x": WEB_TOKEN},
}
PLANTED = [OWN, TOKENS[1], TOKENS[3], WEB_TOKEN]
NAMED = ["hunter2!", "t0ken"]  # nothing but the names of their members says what they are


def _server(folder: Path, **more: Any) -> dict[str, Any]:
    results = {"say": SAID, "long": {"content": [{"type": "text", "text": LONG}]}}
    entry = lister(folder, "s", tools=[tool("say"), tool("long")], results=results)
    return {"s": {**entry, "env": {"API_TOKEN": OWN}, **more}}


def _leaks(said: Any, rule: str = "") -> list[str]:
    text = json.dumps(said)
    return [each for each in (*PLANTED, *(NAMED if rule.endswith("-names") else ())) if each in text]


@pytest.mark.parametrize("rule", ["mcp", "mcp-names"])
def test_a_model_is_shown_no_credential_in_a_result_a_page_or_a_file(tmp_path: Path, rule: str) -> None:
    with serve(tmp_path, _server(tmp_path, scrub=rule)) as gateway:
        gateway.initialize()
        assert not _leaks(said := gateway.mcp(tool="s_say"), rule)
        assert "[REDACTED:KEY]" in json.dumps(said)
        assert all(each in json.dumps(said) for each in NAMED) == (rule == "mcp")
        assert not _leaks(gateway.mcp(tool="s_say")), "by the name that is known now"
        cut = gateway.mcp(tool="s_long")
        kept = cut["_meta"]["greenroom/details"]["outputGuard"]
        assert not _leaks([cut, Path(kept["fullOutputPath"]).read_text(), gateway.mcp(output=kept["output"])])
        assert gateway.end() == 0


@pytest.mark.parametrize("rule", ["mcp", "off"])
def test_a_model_is_shown_no_credential_in_the_result_of_a_task_nor_is_one_kept(
    tmp_path: Path, rule: str
) -> None:
    kept = tmp_path / "kept"
    given = _server(tmp_path, scrub=rule)
    with serve(tmp_path, given, tasks={"keep": os.fspath(kept)}) as gateway:
        gateway.initialize()
        begun = gateway.mcp(tool="s_say", background=True)
        task = begun["_meta"]["greenroom/details"]["task"]
        said = gateway.mcp(task=task)
        while "still runs" in said["content"][0]["text"]:
            said = gateway.mcp(task=task)
        files = [each.read_text(errors="replace") for each in kept.rglob("*") if each.is_file()]
        assert any(task in each for each in files) or any(task in each.name for each in kept.rglob("*"))
        for shown in ([begun, said], files):
            assert bool(_leaks(shown)) is (rule == "off")
        assert gateway.end() == 0


@pytest.mark.parametrize("expose", ["proxy", "direct"])
def test_a_number_that_is_a_secret_breaks_no_call(tmp_path: Path, expose: str) -> None:
    """A password of digits may be in a result as a number, or stand behind an escape."""
    said = {"content": [{"type": "text", "text": "a\nabc123456"}], "structuredContent": {"id": 12345678}}
    entry = lister(tmp_path, "s", tools=[tool("say")], results={"say": said})
    entry |= {"env": {"API_TOKEN": "12345678", "API_KEY": "nabc123456"}, "scrub": "all"}
    with serve(tmp_path, {"s": entry}, *(() if expose == "proxy" else ("--expose", expose))) as gateway:
        if expose == "proxy":
            gateway.initialize()
            found = gateway.mcp(tool="s_say")
        else:
            gateway.answer(gateway.send("initialize", HELLO))
            found = gateway.answer(gateway.send("tools/call", {"name": "s_say", "arguments": {}}))["result"]
        assert not found.get("isError")
        assert "12345678" not in json.dumps(found)
        assert "a\nabc123456" in found["content"][0]["text"]
        assert gateway.end() == 0


@pytest.mark.parametrize("rule", ["mcp", "mcp-names", "all", "all-names", "off"])
def test_each_door_scrubs_where_the_server_is_to_be(tmp_path: Path, rule: str) -> None:
    given = _server(tmp_path, scrub=rule)
    with serve(tmp_path, given, "--expose", "direct") as gateway:
        gateway.answer(gateway.send("initialize", HELLO))
        meta = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        for more in ({}, {}, {"_meta": meta}):
            said = gateway.answer(gateway.send("tools/call", {"name": "s_say", "arguments": {}, **more}))[
                "result"
            ]
            if rule.startswith("all"):
                assert not _leaks(said, rule)
            else:
                assert {key: said[key] for key in SAID if key != "_meta"} == {
                    key: SAID[key] for key in SAID if key != "_meta"
                }
        assert gateway.end() == 0
    if rule == "off":
        with serve(tmp_path, given) as gateway:
            gateway.initialize()
            assert OWN in json.dumps(gateway.mcp(tool="s_say"))
            assert gateway.end() == 0


@pytest.mark.parametrize("rule", ["mcp", "mcp-names", "all", "all-names"])
@in_real_time
async def test_a_program_is_given_results_as_they_are_unless_it_asks(tmp_path: Path, rule: str) -> None:
    config = {"mcpServers": _server(tmp_path), "settings": {"scrub": rule}}
    async with Greenroom.open(config, cache_path=":memory:", bootstrap=False) as room:
        result = await room.call("say", server="s")
        said = await room.request("s", "tools/call", {"name": "say", "arguments": {}})
        if rule.startswith("all"):
            assert not _leaks([result.raw, said], rule)
        else:
            assert result.raw == said == SAID


@in_virtual_time
async def test_a_session_s_own_credential_is_removed_from_what_the_session_is_given() -> None:
    async with open_room({"s": FakeServer()}, scrub="all") as room, room.session("ann") as ann:
        RoomInside(room).machinery.context.secrets.add("s", "ann", [SecretValue("TOKEN", OWN)])
        said = [(await caller.call("echo", {"x": OWN}, server="s")).raw for caller in (ann, room)]
        assert [OWN in json.dumps(each) for each in said] == [False, True], "nobody else's is known"


@in_real_time
async def test_code_in_the_sandbox_is_given_no_credential() -> None:
    room = asking_room({"s": AskingServer({"echo": echo})})
    async with room, talking(room, "meta") as talk, talk("ann") as ann:
        code = f'found = await call("s", "echo", {{"a": "{TOKENS[1]}"}})\n" ".join(str(found))'
        said = json.dumps(await use(ann, "mcp_execute", code=code)).replace(" ", "")
        assert "[REDACTED:KEY]" in said
        assert TOKENS[1] not in said


# ---- what a server says beside its results ---------------------------------------------------------------------------


class Wiping:
    """A room that scrubs what one server says at one door: every `S` goes."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Scrub]] = []

    def scrubber(self, server: str, door: Scrub, /) -> Any:
        self.asked.append((server, door))
        return self if (server, door) == ("s", Scrub.MCP) else None

    def scrub(self, raw: bytes) -> bytes:
        return raw.replace(b"S", b"*") if b"S" in raw else raw


def test_what_a_server_says_beside_its_results_loses_credentials_at_the_same_doors() -> None:
    room: Any = Wiping()
    said = {"level": "info", "logger": "aSb", "data": {"x": "S"}, "progress": 1.5}
    assert scrubbed_params(room.scrubber, Scrub.MCP, "s", said) == {
        **said,
        "logger": "a*b",
        "data": {"x": "*"},
    }
    for server, door in (("t", Scrub.MCP), ("s", Scrub.ALL)):
        assert scrubbed_params(room.scrubber, door, server, said) is said
    clean = {"data": "x"}
    assert scrubbed_params(room.scrubber, Scrub.MCP, "s", clean) is clean
    told: list[Any] = []
    tell = scrubbed_progress(room.scrubber, Scrub.MCP, "s", told.append)
    tell({"progress": 1, "message": "S"})
    assert told == [{"progress": 1, "message": "*"}]
    assert set(room.asked) == {("s", Scrub.MCP), ("t", Scrub.MCP), ("s", Scrub.ALL)}


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_what_is_too_long_to_be_looked_through_goes_on_without_its_words(over: int) -> None:
    room: Any = Wiping()
    numbers = {"progress": 2.5, "total": 7, "done": False}
    rest = {**numbers, "message": "S", "logger": "S", "level": "S"}
    size = len(json.dumps({**rest, "data": ""}, separators=(",", ":")))
    said = {**rest, "data": "x" * (65_536 - size + over)}
    found = scrubbed_params(room.scrubber, Scrub.MCP, "s", said)
    if over <= 0:
        assert found == {**said, "message": "*", "logger": "*", "level": "*"}
    else:
        instead = dict.fromkeys(("message", "data", "logger"), "[REDACTED: too long to be looked through]")
        assert found == {**numbers, **instead}
        short = {"progress": 1, "data": "x" * 65_536}
        assert set(scrubbed_params(room.scrubber, Scrub.MCP, "s", {**short, "message": 5, "x": "S" * 9})) == {
            *("progress", "data", "message")
        }


@for_each(
    ("method", "params", "shown"),
    [
        (
            "elicitation/create",
            {"message": "S", "schema": {"S": "S"}},
            {"message": "*", "schema": {"S": "S"}},
        ),
        ("elicitation/create", {"message": 5, "url": "S"}, {"message": 5, "url": "S"}),
        ("elicitation/create", {"url": "S"}, {"url": "S"}),
        ("sampling/createMessage", {"message": "S"}, {"message": "S"}),
    ],
)
def test_of_a_server_request_only_the_sentence_for_a_person_is_looked_through(
    method: str, params: dict[str, Any], shown: dict[str, Any]
) -> None:
    room: Any = Wiping()
    assert scrubbed_server_request(room.scrubber, Scrub.MCP, "s", method, params) == shown
    assert scrubbed_server_request(room.scrubber, Scrub.ALL, "s", method, params) == params
