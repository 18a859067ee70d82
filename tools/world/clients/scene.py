"""What every client of the world run is asked to do: list, call, and say what its model would be shown.

Each client is a script of its own, run in an environment of its own with this folder on its path, and given one line of
JSON: the gateway's command, its arguments, and the calls to make. It answers with one line of JSON on stdout.
"""

import json
import sys


def play(scene):
    """Run `scene(command, arguments, calls)`, which gives (names listed, [(was it an error, what was shown)])."""
    wish = json.loads(sys.argv[1])
    calls = [(call["tool"], call["arguments"]) for call in wish["calls"]]
    listed, shown = scene(wish["command"], wish["arguments"], calls)
    answer = {"listed": listed, "shown": [{"is_error": is_error, "text": text} for is_error, text in shown]}
    print("\n" + json.dumps(answer), flush=True)


def text_of(value):
    """A value as a model would be given it."""
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def blocks_text(result):
    """The text of a result's content blocks."""
    return "\n".join(block.text for block in result.content if getattr(block, "text", None) is not None)
