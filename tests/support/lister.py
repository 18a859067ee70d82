"""A server that lists and answers what its file says: `python -S lister.py FILE`. `lister(...)` is its entry.

FILE is JSON. `tools`: the records. `results`: name -> the result of a call (a text, if the name is not there).
`echoes`: a call is answered with its arguments. `instructions`. `capabilities`: further ones. `contents`: URI -> what
is read there, and `resources` and `templates`: the records. `skills`: the entries that are listed, and
`unlisted_skills` those that are not. `folders`: URI -> what is read of it. `prompts`: the records, each of which says
its name. `grown`: URI -> how many characters are read there in place of what is said. The tool `client` answers with
what the server was told of its client. `pages`: how many pages the list of tools has, each with the same tools;
`"same"`: endless pages with one cursor; `"endless"`: endless pages with new cursors. `many`: the number of further
small tools. `nested`: the depth of the schema of one more tool.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING or __name__ != "__main__":
    import json
    from pathlib import Path
    from typing import Any
else:  # as a server: it is started by the hundred, and each of these takes longer to import than Python to start
    sys.path.insert(
        0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../src/greenroom/testing/servers")
    )
    import quick_json as json

    del sys.path[0]


def lister(folder: Path, name: str, **what: Any) -> dict[str, Any]:
    """The entry of a server called `name`; `what` is the content of its file."""
    file = folder / f"{name}.lister.json"
    file.write_text(json.dumps(what))
    return {"command": sys.executable, "args": ["-S", os.path.abspath(__file__), os.fspath(file)]}


def tool(name: str, description: str = "", **more: Any) -> dict[str, Any]:
    """The record of a tool."""
    return {"name": name, "description": description, "inputSchema": {"type": "object"}, **more}


def skill(path: str, texts: dict[str, str], description: str = "How to", **more: Any) -> dict[str, Any]:
    """What a file says of one skill: `skills` and `contents`."""
    import hashlib

    name, uris = path.rpartition("/")[2], {file: f"skill://{path}/{file}" for file in ("SKILL.md", *texts)}
    texts = {"SKILL.md": f"---\nname: {name}\ndescription: {description}\n---\nBody.\n", **texts}
    files = [
        {
            "uri": uris[file],
            "digest": f"sha256:{hashlib.sha256(text.encode()).hexdigest()}",
            "size": len(text.encode()),
        }
        for file, text in texts.items()
    ]
    said = {"name": name, "description": description, **more}
    return {
        "skills": [{"uri": uris["SKILL.md"], "frontmatter": said, "resources": files}],
        "contents": {uris[file]: {"uri": uris[file], "text": text} for file, text in texts.items()},
    }


def _answer(what: dict[str, Any], method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        what["client"] = params["capabilities"]
        more = {"instructions": what["instructions"]} if "instructions" in what else {}
        info = {"name": "said", "version": "1"}
        has = {
            "tools": {},
            **({"resources": {}} if "contents" in what else {}),
            **({"prompts": {}, "completions": {}} if "prompts" in what else {}),
            **({"extensions": {"io.modelcontextprotocol/skills": {}}} if "skills" in what else {}),
            **what.get("capabilities", {}),
        }
        return {"protocolVersion": "2025-11-25", "capabilities": has, "serverInfo": info, **more}
    if method == "skills/list":
        return {"skills": what["skills"]}
    if method == "skills/get":
        found = [
            each for each in what["skills"] + what.get("unlisted_skills", []) if each["uri"] == params["uri"]
        ]
        return {"skill": found[0]} if found else None
    if method == "prompts/list" and "prompts" in what:
        return {"prompts": what["prompts"]}
    if method == "prompts/get":
        return {"messages": [{"role": "user", "content": {"type": "text", "text": params["name"]}}]}
    if method == "completion/complete":
        return {"completion": {"values": ["completed"]}}
    if method == "resources/list":
        return {"resources": what.get("resources", [])}
    if method == "resources/templates/list" and "templates" in what:
        return {"resourceTemplates": what["templates"]}
    if method == "resources/read" and params["uri"] in what["contents"]:
        said = what["contents"][params["uri"]]
        grown = what.get("grown", {}).get(params["uri"])
        return {"contents": [{**said, "text": "x" * grown} if grown else said]}
    if method == "resources/directory/read":
        return what.get("folders", {}).get(params["uri"])
    if method == "tools/call" and params["name"] == "client":
        return {"content": [{"type": "text", "text": json.dumps(what["client"])}]}
    if method == "tools/list":
        return _page(what, int(params.get("cursor", 0)))
    if method == "tools/call" and what.get("echoes"):
        return {"content": [{"type": "text", "text": json.dumps(params["arguments"])}]}
    if method == "tools/call":
        return what.get("results", {}).get(
            params["name"], {"content": [{"type": "text", "text": params["name"]}]}
        )
    return {} if method == "ping" else None


def _page(what: dict[str, Any], number: int) -> dict[str, Any]:
    pages = what.get("pages", 1)
    if pages == "endless":
        pages = number + 2
    if pages == "same":
        return {"tools": what["tools"], "nextCursor": "1"}
    more = {"nextCursor": str(number + 1)} if number + 1 < pages else {}
    return {"tools": [{**each, "name": f"{each['name']}{number or ''}"} for each in what["tools"]], **more}


def main() -> None:
    with open(sys.argv[1]) as file:
        what = json.loads(file.read())
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        result = _answer(what, message["method"], message.get("params") or {})
        code = -32602 if message["method"] in ("skills/get", "resources/directory/read") else -32601
        end = {"error": {"code": code, "message": "no"}} if result is None else {"result": result}
        said = json.dumps({"jsonrpc": "2.0", "id": message["id"], **end})
        if message["method"] == "tools/list":
            said = said.replace('"tools": [', f'"tools": [{_more(what)}', 1).replace(", ]", "]", 1)
        print(said, flush=True)


def _more(what: dict[str, Any]) -> str:
    """The tools of `many` and `nested`, as JSON text."""
    more = [f'{{"name": "many_{number}"}}' for number in range(what.get("many", 0))]
    if depth := what.get("nested"):
        schema = '{"x":' * depth + "{}" + "}" * depth
        more.append(f'{{"name": "nested", "inputSchema": {schema}}}')
    return "".join(f"{tool}, " for tool in more)


if __name__ == "__main__":
    main()
