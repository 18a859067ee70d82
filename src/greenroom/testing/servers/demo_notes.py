"""`python -m greenroom.testing.servers.demo_notes`: keeps notes as long as its process lives.

Its state is the point: two calls that reach one process see the same notes, and a fresh process has none.
"""

from __future__ import annotations

from .minimal import Json, MinimalTool, Resource, ToolError, serve

_notes: list[str] = []


def add(arguments: Json) -> Json:
    """Keep one note."""
    text = arguments["text"]
    if not isinstance(text, str) or not text.strip():
        raise ToolError("text must be a string that is not empty")
    _notes.append(text)
    return {"number": len(_notes)}


def find(arguments: Json) -> Json:
    """The notes that hold a word."""
    word = str(arguments.get("word", "")).casefold()
    return {"notes": [note for note in _notes if word in note.casefold()]}


def all_notes() -> str:
    """Every note, a line each."""
    return "\n".join(f"{number}. {note}" for number, note in enumerate(_notes, 1)) or "(no notes yet)"


TOOLS = {
    "add": MinimalTool(
        "Keep a note; returns its number.",
        {"text": {"type": "string", "description": "what to remember"}},
        add,
        required=("text",),
    ),
    "find": MinimalTool(
        "Find notes that hold a word; without one, list them all.",
        {"word": {"type": "string", "description": "upper and lower case are equal"}},
        find,
        read_only=True,
    ),
}
RESOURCES = {"notes://all": Resource("all notes", "Every note kept so far.", all_notes)}


if __name__ == "__main__":
    serve("demo-notes", TOOLS, RESOURCES)
