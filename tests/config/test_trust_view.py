"""What `greenroom trust` shows of each place of a file: what runs and what is sent, and no secret."""

from __future__ import annotations

import json
from typing import Any

from tests.support.rows import for_each

from greenroom.config.trust import shown_matter

SECRET = "planted-4711"
KEPT = {"keyring": "s/n"}

SHOWN: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {"args": ["-c", "serve", "--token", SECRET, 5, None, {"keyring": "a/b"}, {"x": "y"}]},
        {"args": ["-c", "serve", "--token", "***", 5, None, {"keyring": "a/b"}, {"x": "y"}]},
    ),
    ({"args": ["--token", "a; b"]}, {"args": ["--token", "a; b"]}),
    ({"args": ["--token", f"!get --password {SECRET}"]}, {"args": ["--token", "!get --password ***"]}),
    ({"args": [f"--key={SECRET}${{A}}"]}, {"args": ["--key=*** (with ${A})"]}),
    ({"command": f"/opt/ghp_abcdefgh1234/${{A:-{SECRET}}}"}, {"command": "/opt/***/${A:-***}"}),
    ({"command": ["run", "--token", SECRET]}, {"command": ["run", "--token", "***"]}),
    (
        {"cwd": "/srv/${HOME}", "socket": "/run/glpat-abcdefgh/s", "envFile": "./e", "bearerTokenEnv": "TOK"},
        {"cwd": "/srv/${HOME}", "socket": "/run/***/s", "envFile": "./e", "bearerTokenEnv": "TOK"},
    ),
    ({"workingDirectory": "/run/glpat-abcdefgh"}, {"workingDirectory": "/run/***"}),
    # What decides what a program runs is shown, unless its name is that of a secret.
    (
        {"env": {"PATH": "/evil:$env:PATH", "NODE_OPTIONS": "--require ./x", "my_path": "./x", "GIT_TOKEN": SECRET}},
        {"env": {"PATH": "/evil:$env:PATH", "NODE_OPTIONS": "--require ./x", "my_path": "./x", "GIT_TOKEN": "***"}},
    ),
    ({"env": {"http_proxy": f"http://u:{SECRET}@p"}}, {"env": {"http_proxy": "http://***@p"}}),
    (
        {"environment": {"A": "${B}", "B": f"{SECRET}${{C}}", "C": "", "D": f"${{E:-{SECRET}}}"}},
        {"environment": {"A": "${B}", "B": "*** (with ${C})", "C": "***", "D": "*** (with ${E})"}},
    ),
    (
        {"env": {"A": KEPT, "B": {**KEPT, "x": SECRET}, "C": [SECRET], "D": {"a": {"b": SECRET}}}},
        {"env": {"A": KEPT, "B": {"keyring": "***", "x": "***"}, "C": ["***"], "D": {"a": {"b": "***"}}}},
    ),
    (
        {"headers": {"Authorization": "Bearer ${T}", "X": f"Bearer {SECRET}", "Z": "!say", "K": KEPT}},
        {"headers": {"Authorization": "Bearer ${T}", "X": "***", "Z": "!say", "K": KEPT}},
    ),
    ({"headers": {"Y": f"Bearer !say --password {SECRET}"}}, {"headers": {"Y": "Bearer !say --password ***"}}),
    (
        {"http_headers": {"X": SECRET}, "env_http_headers": {"X": SECRET}},
        {"http_headers": {"X": "***"}, "env_http_headers": "***"},
    ),
    ({"bearerToken": SECRET}, {"bearerToken": "***"}),
    ({"bearerToken": "${T}"}, {"bearerToken": "${T}"}),
    ({"bearerToken": KEPT}, {"bearerToken": KEPT}),
    ({"bearerToken": "!get"}, {"bearerToken": "!get"}),
    (
        {"url": f"https://me:{SECRET}@h/p?k={SECRET}&a=${{A}}#f"},
        {"url": "https://***@h/p?k=***&a=${A}#***"},
    ),
    ({"serverUrl": f"https://h/?k={SECRET}${{A}}"}, {"serverUrl": "https://h/?k=*** (with ${A})"}),
    (
        {"auth": {"CLIENT_ID": "us", "CLIENT_SECRET": SECRET}},
        {"auth": {"CLIENT_ID": "us", "CLIENT_SECRET": "***"}},
    ),
    (
        {"oauth": {"clientId": "me", "clientSecret": SECRET, "scope": "a b", "authorizationParams": {"a": SECRET}}},
        {"oauth": {"clientId": "me", "clientSecret": "***", "scope": "a b", "authorizationParams": {"a": "***"}}},
    ),
    (
        {"requestHeadersCommand": {"command": "sign", "args": ["--key", SECRET], "env": {"K": SECRET}, "timeoutMs": 5}},
        {"requestHeadersCommand": {"command": "sign", "args": ["--key", "***"], "env": {"K": "***"}, "timeoutMs": 5}},
    ),
    (
        {"type": "sse", "includeTools": ["a"], "disabled": False, "n": 5, "none": None, "toolOverrides": {"t": {}}},
        {"type": "sse", "includeTools": ["a"], "disabled": False, "n": 5, "none": None, "toolOverrides": {"t": {}}},
    ),
    ({"mystery": SECRET, "deep": {"x": SECRET}}, {"mystery": "***", "deep": "***"}),
    # In a form that nobody reads, such as that of docker.
    ({"env": [f"TOKEN={SECRET}"]}, {"env": ["***"]}),
    ({"env": f"TOKEN={SECRET}", "headers": f"X: {SECRET}"}, {"env": "***", "headers": "***"}),
    ({"args": f"--token {SECRET}"}, {"args": "***"}),
    ({"url": [f"https://u:{SECRET}@h"], "cwd": {"a": SECRET}}, {"url": ["***"], "cwd": {"a": "***"}}),
    (
        {"requestHeadersCommand": {"command": ["sign", "--key", SECRET], "args": SECRET, "env": [f"A={SECRET}"]}},
        {"requestHeadersCommand": {"command": ["sign", "--key", "***"], "args": "***", "env": ["***"]}},
    ),
    (
        {"requestHeadersCommand": {"env": f"A={SECRET}", "args": {"a": SECRET}}, "env": {"A": {"args": [SECRET]}}},
        {"requestHeadersCommand": {"env": "***", "args": {"a": "***"}}, "env": {"A": {"args": ["***"]}}},
    ),
    ({"requestHeadersCommand": ["sign", SECRET]}, {"requestHeadersCommand": ["***", "***"]}),
    ({"requestHeadersCommand": SECRET}, {"requestHeadersCommand": "***"}),
    ({"oauth": SECRET, "auth": [SECRET]}, {"oauth": "***", "auth": ["***"]}),
    ({"oauth": [{"a": SECRET}], "auth": SECRET}, {"oauth": [{"a": "***"}], "auth": "***"}),
    ({"oauth": 4711, "auth": f"${{A}}{SECRET}"}, {"oauth": "***", "auth": "*** (with ${A})"}),
    ({"oauth": False, "auth": "oauth"}, {"oauth": False, "auth": "oauth"}),
    ({"oauth": True, "auth": "OAuth"}, {"oauth": True, "auth": "OAuth"}),
    ({"oauth": None, "auth": "bearer"}, {"oauth": None, "auth": "bearer"}),
    ({"auth": False}, {"auth": False}),
    # A number can be a secret, too.
    (
        {"env": {"PIN": 4711, "RATIO": 0.5, "ON": True, "OFF": None, "L": [4711, False]}},
        {"env": {"PIN": "***", "RATIO": "***", "ON": True, "OFF": None, "L": ["***", False]}},
    ),
    ({"headers": {"X": 4711}, "bearerToken": 4711}, {"headers": {"X": "***"}, "bearerToken": "***"}),
    ({"oauth": {"clientSecret": 4711, "n": 5}}, {"oauth": {"clientSecret": "***", "n": 5}}),
    ({"apiKey": 4711, "url": 4711}, {"apiKey": "***", "url": "***"}),
    ({"args": ["--token", 4711, "--port", 80, "-n", True]}, {"args": ["--token", "***", "--port", 80, "-n", True]}),
]  # fmt: skip


@for_each(("entry", "shown"), SHOWN)
def test_what_is_shown_of_an_entry(entry: dict[str, Any], shown: dict[str, Any]) -> None:
    said = shown_matter({"mcpServers": {"s": entry}})
    assert said == {"mcpServers": {"s": shown}}
    assert SECRET not in json.dumps(said)


def test_what_is_shown_of_the_rest_of_a_file() -> None:
    said = shown_matter(
        {
            "mcpServers": {"s": "odd"},
            "imports": ["pi"],
            "settings": {"http": {"tokens": {"ann": SECRET}}, "secretTimeoutMs": 5, "registry": f"https://u:{SECRET}@r"},
            "adapter": {
                "mcpBearerToken": SECRET,
                "env": {"A": SECRET},
                "args": ["--token", SECRET],
                "list": ["a", f"x --password {SECRET}"],
                "mySecret": {"deep": [SECRET, 5, True]},
                "env_http_headers": {"X": SECRET},
            },
            "profiles": {"w": {"tools": ["a"]}},
        }
    )  # fmt: skip
    assert said == {
        "mcpServers": {"s": "odd"},
        "imports": ["pi"],
        "settings": {"http": {"tokens": {"ann": "***"}}, "secretTimeoutMs": 5, "registry": "https://***@r"},
        "adapter": {
            "mcpBearerToken": "***",
            "env": {"A": "***"},
            "args": ["--token", "***"],
            "list": ["a", "x --password ***"],
            "mySecret": {"deep": ["***", "***", True]},
            "env_http_headers": {"X": "***"},
        },
        "profiles": {"w": {"tools": ["a"]}},
    }
