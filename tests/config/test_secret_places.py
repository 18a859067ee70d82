"""Where a value may hold a secret: what is shown of a text, a URL, a line, arguments, and what is hidden."""

from __future__ import annotations

from tests.support.rows import for_each

from greenroom.config.masking import Hider

SHAPED = "abcdef0123456789"
MIXED = "AbcdEfgh12345678901234"
HEX = "0123456789abcdef" * 2


@for_each(
    ("value", "shown"),
    [
        ("", "***"),
        ("plain", "***"),
        ("${A}", "${A}"),
        ("Bearer ${A}", "Bearer ${A}"),
        ("BASIC ${A}", "BASIC ${A}"),
        ("token ${A}", "token ${A}"),
        ("  ${A} ", "  ${A} "),
        ("${A}${B}", "${A}${B}"),
        ("x${A}", "***"),
        ("${A:-d}", "***"),
        ("Basic  ", "***"),
        ("***", "***"),
    ],
)
def test_a_value_is_shown_only_if_it_is_nothing_but_references(value: str, shown: str) -> None:
    hider = Hider()
    assert hider.value(value, "name") == shown
    hidden = [] if value == shown else [("name", value)]
    assert [(each.name, each.value) for each in hider.found] == hidden


@for_each(
    ("text", "shown", "found"),
    [
        ("/a/b", "/a/b", []),
        ("/x/sk-abcd1234/y", "/x/***/y", ["sk-abcd1234"]),
        ("a-ghp_abcd", "a-***", ["ghp_abcd"]),
        (HEX, "***", [HEX]),
        (MIXED, "***", [MIXED]),
        (f"x/{MIXED}", f"x/{MIXED}", []),
        ("eyJhbGciOi.x", "***", ["eyJhbGciOi.x"]),
        ("/a/${B:-hunter2}/${C:-}/${D}", "/a/${B:-***}/${C:-}/${D}", ["hunter2"]),
    ],
)
def test_of_a_path_keys_and_defaults_are_hidden(text: str, shown: str, found: list[str]) -> None:
    hider = Hider()
    assert hider.text(text) == shown
    assert [each.value for each in hider.found] == found


@for_each(
    ("url", "shown", "found"),
    [
        ("https://h/p", "https://h/p", []),
        ("https://u@h:1", "https://***@h:1", ["u"]),
        ("https://u:${P}@h", "https://***@h", ["u:${P}"]),
        ("https://${U}@h/x", "https://${U}@h/x", []),
        (f"https://h/{SHAPED}/x", "https://h/***/x", [SHAPED]),
        (f"https://h/{SHAPED[:15]}/x", f"https://h/{SHAPED[:15]}/x", []),
        ("https://h/abcdefghijklmnop", "https://h/abcdefghijklmnop", []),
        ("https://h/0123456789012345", "https://h/0123456789012345", []),
        ("https://h/?a", "https://h/?***", ["a"]),
        ("https://h/?a=&b=c&d=${E}", "https://h/?a=***&b=***&d=${E}", ["", "c"]),
        ("https://h/#", "https://h/", []),
        ("https://h/#f", "https://h/#***", ["f"]),
        ("/p?x=1", "/p?x=***", ["1"]),
        ("http://[bad", "***", ["http://[bad"]),
        ("https://h/${A:-hunter2}", "https://h/${A:-***}", ["hunter2"]),
    ],
)
def test_of_a_url_only_where_it_leads_is_shown(url: str, shown: str, found: list[str]) -> None:
    hider = Hider()
    assert hider.url(url) == shown
    assert [each.value for each in hider.found] == found


@for_each(
    ("line", "shown", "found"),
    [
        ("print token please", "print token please", []),
        ("Bearer hunter2 x", "Bearer *** x", ["hunter2"]),
        ("basic hunter2", "basic ***", ["hunter2"]),
        ("bearer -v hunter2", "bearer -v hunter2", []),
        ("token: bearer hunter2 rest", "token: bearer *** rest", ["hunter2"]),
        ("password: hunter2 end", "password: *** end", ["hunter2"]),
        ("password= hunter2 end", "password= *** end", ["hunter2"]),
        ("see api-key:hunter2 end", "see api-key: *** end", ["hunter2"]),
        ("run --token hunter2; next", "run --token ***; next", ["hunter2"]),
        ("a | b --key=hunter2 && c", "a | b --key=*** && c", ["hunter2"]),
        ("TOKEN=hunter2 run x", "TOKEN=*** run x", ["hunter2"]),
        ("run -u anna:hunter2 -v", "run -u *** -v", ["anna:hunter2"]),
        ("curl -H 'X-Api-Key: hunter2' http://u:p@h", "curl -H 'X-Api-Key: ***' http://***@h", ["hunter2", "u:p"]),
        ("export A=b; c", "export A=b; c", []),
        ("--token", "--token", []),
        ("", "", []),
    ],
)  # fmt: skip
def test_a_line_is_read_as_a_shell_will(line: str, shown: str, found: list[str]) -> None:
    hider = Hider()
    assert hider.line(line) == shown
    assert [each.value for each in hider.found] == found


@for_each(
    ("args", "shown"),
    [
        (["--token", "-v", "x"], ["--token", "-v", "x"]),
        (["--token=", "x"], ["--token=***", "x"]),
        (["--token=a", "x"], ["--token=***", "x"]),
        (["--key", "x", "y"], ["--key", "***", "y"]),
        (["token", "x"], ["token", "x"]),
        (["-u", "a:b"], ["-u", "***"]),
        (["-U", "a:b"], ["-U", "***"]),
        (["--user", "a:b"], ["--user", "***"]),
        (["--proxy-user", "a:b"], ["--proxy-user", "***"]),
        (["-u", "a"], ["-u", "a"]),
        (["-x", "a:b"], ["-x", "a:b"]),
        (["-H", "Auth: x"], ["-H", "Auth: ***"]),
        (["-H", "Accept: x"], ["-H", "Accept: x"]),
        (["--env", "TOKEN=x"], ["--env", "TOKEN=***"]),
        (["--env=TOKEN=x"], ["--env=TOKEN=***"]),
        (["--env=A=b"], ["--env=A=b"]),
        (["--header=Authorization: Bearer x"], ["--header=Authorization: ***"]),
        (["--url=https://u:p@h?q=1"], ["--url=https://***@h?q=***"]),
        (["https://u:p@h", "http://x?token=y"], ["https://***@h", "http://x?token=***"]),
        (["h.example/p?api_key=x", "h/p?a=1&token=x"], ["h.example/p?api_key=***", "h/p?a=***&token=***"]),
        (["a b --token c"], ["a b --token ***"]),
        (["-kabcD1", "-k", "abcD1"], ["-k***", "-k", "abcD1"]),
        (["-kabc"], ["-kabc"]),
        (["C:\\x", "auth:x"], ["C:\\x", "auth: ***"]),
        (["${A:-hunter2}", "--token", "${T}"], ["${A:-***}", "--token", "${T}"]),
    ],
)
def test_arguments_are_read_as_their_program_will(args: list[str], shown: list[str]) -> None:
    assert Hider().arguments(args) == shown


@for_each(
    ("arg", "shown"),
    [
        ("example.com/mcp?sig=x", "example.com/mcp?sig=***"),
        ("example.com/mcp?abc123secret", "example.com/mcp?***"),
        ("example.com/mcp?abc", "example.com/mcp?***"),
        ("localhost?sig=x", "localhost?sig=***"),
        ("h:80/?sig=x", "h:80/?sig=***"),
        ("h:80?abc", "h:80?***"),
        ("/p?x=1#f", "/p?x=***#***"),
        ("/mcp?abc123secret", "/mcp?***"),
        ("h/p?a=1&sig=x&c=${D}", "h/p?a=***&sig=***&c=${D}"),
        ("http://h/p?a=1&sig=x&c=${D}", "http://h/p?a=***&sig=***&c=${D}"),
        ("h/p?next=http://x/y&b=c", "h/p?next=***&b=***"),
        ("--url=http://h/?a=1&b=2#f", "--url=http://h/?a=***&b=***#***"),
        ("--url=h.io/?sig=x", "--url=h.io/?sig=***"),
        ("--url=h.io/mcp?abc123secret", "--url=h.io/mcp?***"),
        ("--url=h.io/mcp?a=1&sig=x", "--url=h.io/mcp?a=***&sig=***"),
        ("${HOST}/mcp?sig=x", "${HOST}/mcp?sig=***"),
        (f"server-01.example-company.com/{SHAPED}/x?a=b", "server-01.example-company.com/***/x?a=***"),
        ("u.io/glpat-abcdefgh?a=b", "u.io/***?a=***"),
        ("curl h/p?a=1&b=2 -s", "curl h/p?a=***&b=*** -s"),
        # As a shell will read it.
        ("curl h/p?a=1& run x", "curl h/p?a=***& run x"),
        ("curl h/p?a=1&run-this", "curl h/p?a=***&run-this"),
        ("curl h/p?a=1&&b=c x", "curl h/p?a=***&&b=c x"),
        ("x&a=b", "x&a=b"),
    ],
)
def test_an_address_without_a_scheme_has_a_query_too(arg: str, shown: str) -> None:
    assert Hider().arguments([arg]) == [shown]


@for_each(
    "arg",
    [
        *("what?", "why?not=this", "*.p?", "*.p?t", "a.b?", "./a?b", "src/file?.txt", "src/mod?le_test.py"),
        *("a/b*?x=y", "/users?/[0-9]+", "colou?r", "report-202?.csv", "\\d+.?x=1", "x.y?.z=1", "h/p?", "h/p?=x"),
        *("-Dx.y=a?b", "C:\\x?a=b", "h.io/p?${Q}", "A=b/c?d", "file.t?xt"),
    ],
)  # fmt: skip
def test_a_word_that_is_no_address_with_a_query_is_shown(arg: str) -> None:
    assert Hider().arguments([arg]) == [arg]
