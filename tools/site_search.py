"""Search the built site in Chromium, offline and from its folder, as a reader would.

    python -m tools.site_search                    the questions below find their pages
    python -m tools.site_search restart backoff    what is found for these words

It needs `make site` before it. Where there is no Chromium, it says so and tries nothing.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

SITE: Final = Path(__file__).resolve().parent.parent / ".build" / "site"
NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
# What somebody asks -> the page that has to be found first.
QUESTIONS: Final[Mapping[str, str]] = {
    "restart backoff": "policies.html",
    "server_busy": "reference/errors.html",
    "RateLimited": "reference/errors.html",
    "ToolResult": "reference/python/tool-result.html",
    "FakeServer": "reference/python/testing-fake-server.html",
    "RoomTransport": "reference/python/adapters-fastmcp.html",
    "trust project": "trust.html",
    "oauth gateway": "http-oauth.html",
    "call_many": "reference/python/greenroom.html",
    "maxConnections": "reference/settings.html",
    "troubleshoot": "troubleshooting.html",
    "faq": "faq.html",
    "performance": "tuning.html",
    "windows": "windows.html",
    "docker": "installing.html",
    "retry": "faq.html",
    "timeout": "policies.html",
    "migrate": "coming-from/editors.html",
    "cancel scope in a different task": "howto/async-python.html",
    "langchain": "frameworks/langchain.html",
    "tapes pytest": "tapes-in-tests.html",
    "preflight": "doctor.html",
    "kubernetes": "cluster-kubernetes.html",
    "token in header": "secrets.html",
    "server hangs": "howto/stuck.html",
    "what is running": "cli.html",
    "is a retry safe": "faq.html",
    "hide tools": "profiles.html",
    "incarnation": "lifecycle.html",
    "glossary": "glossary.html",
    "why is a tool blocked": "faq.html",
    "limits per caller": "limits.html",
    "OAuth server": "login.html",
    "login": "login.html",
    "environment variables": "reference/environment.html",
}
_FOUND: Final = re.compile(r'href="file://[^"]*?/site/([^"?#]+)[^"]*" class="md-search-result__link"')


def main(words: Sequence[str]) -> int:
    browser = next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        print("The search of the site was not tried: there is no Chromium here.")
        return 0
    if words:
        print(*dict.fromkeys(found(browser, " ".join(words))), sep="\n")
        return 0
    wrong = 0
    for question, page in QUESTIONS.items():
        first = next(iter(found(browser, question)), "nothing")
        if first != page:
            print(f"The search of the site finds {first} for “{question}”, and should find {page}.")
            wrong += 1
    return 1 if wrong else 0


def found(browser: str, question: str) -> list[str]:
    """The pages that the site finds, best first. The browser has no network."""
    with tempfile.TemporaryDirectory() as profile:
        asked = (
            *(browser, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"),
            *("--proxy-server=127.0.0.1:9", "--virtual-time-budget=10000", "--dump-dom"),
            f"{SITE.as_uri()}/index.html?q={quote(question)}",
        )
        done = subprocess.run(asked, capture_output=True, text=True, timeout=60)
    return _FOUND.findall(done.stdout)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
