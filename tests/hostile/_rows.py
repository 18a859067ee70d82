"""The table: what a server, a client, a file or a neighbour may do to a room, each in a few lines of data.

A row that is `quick` is tried in every run of the tests, each at one door; all of them are tried at all doors by
`make hostile`.
"""

from __future__ import annotations

import hashlib
import json
from typing import Final

from ._words import (
    FIFO,
    FOLDER,
    ID,
    LINK,
    MIB,
    Piece,
    Row,
    answer,
    asked,
    content,
    error,
    forever,
    http,
    nested,
    numbered,
    packed,
    said,
    stream,
    times,
)

TOOL = '{"name":"attack","inputSchema":{"type":"object"}'
DISCOVERED = answer(
    '{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}'
)
WITH_TASKS = answer(
    '{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"tasks":{"requests":{"tools":{"call":{}}}}},'
    '"serverInfo":{"name":"x","version":"1"}}'
)
ENDLESS = '{"taskId":"t","status":"working","createdAt":"","lastUpdatedAt":"","ttl":null,"pollInterval":-1}'
CACHE = "cache/greenroom/catalogue.json"

SKILLFUL = '{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"resources":{},"extensions":{"io.modelcontextprotocol/skills":{}}},"serverInfo":{"name":"x","version":"1"}}'  # fmt: skip
OF_SKILL = f'"digest":"sha256:{"0" * 64}","size"'

# ---- servers, over their pipes -------------------------------------------------------------------------------------

ANSWERS: Final = (
    Row("deep_result", {"attack": content(',"structuredContent":{"a":', *nested(963), "}")}, calls=4, quick=True),
    Row("deeper_result", {"attack": content(',"_meta":{"a":', *nested(5000), "}")}, calls=4),
    Row("bottomless", {"attack": content(',"x":', *nested(2 * MIB))}),
    Row("deep_error", {"attack": error('{"code":1,"message":"no","data":', *nested(964), "}")}, calls=4),
    Row("byte_in_error", {"attack": error('{"code":1,"message":"\udcff","data":"\udcc3"}')}, calls=4, quick=True),
    Row("half_characters", {"attack": answer('{"content":[{"type":"text","text":"\\ud83d"}]}')}, calls=4),
    Row("endless_digits", {"attack": content(',"x":', times(4 * MIB, "7"))}),
    Row("long_error", {"attack": error('{"code":1,"message":"', times(8 * MIB, "no "), '"}')}),
    Row("long_error_data", {"attack": error('{"code":1,"message":"no","data":"', times(8 * MIB, "no "), '"}')}),
    Row("fat_error_data", {"attack": error('{"code":1,"message":"no","data":[', times(30_000, '"a line of text",'), '0]}')}),
    Row("long_notice", {"attack": ['{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"', times(8 * MIB, "no "), '"}}\n', *answer('{"content":[]}')]}),
    Row("long_progress", {"attack": ['{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1,"message":"', times(8 * MIB, "no "), '"}}\n', *answer('{"content":[]}')]}),
    Row("long_server_request", {"attack": ['{"jsonrpc":"2.0","id":7,"method":"sampling/createMessage","params":{"maxTokens":1,"messages":[],"x":"', times(8 * MIB, "no "), '"}}\n', *answer('{"content":[]}')]}),
    Row("marks_in_server_request", {"attack": ['{"jsonrpc":"2.0","id":7,"method":"sampling/createMessage","params":{"maxTokens":1,"messages":[],"x":"', times(4 * MIB - 200, ","), '"}}\n', *answer('{"content":[]}')]}),
    Row("texts_in_server_request", {"attack": ['{"jsonrpc":"2.0","id":7,"method":"elicitation/create","params":{"message":"m","x":[""', times(140_000, ',":,:,:,:,:,:,:,:,:,:,:,:"'), "]}}\n", *answer('{"content":[]}')]}),
    Row("fat_notice", {"attack": ['{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":[', times(100_000, '"a b",'), '0]}}\n', *answer('{"content":[]}')]}),
    Row("digits_for_a_code", {"attack": error('{"code":', times(MIB, "7"), ',"message":"no"}')}),
    Row("many_small_values", {"attack": content(',"x":[[]', times(20 * MIB, ",[]"), "]")}, memory=512 * MIB),
    Row("a_batch", {"attack": ["[{}", times(5 * MIB, ",{}"), "]\n"]}, memory=256 * MIB),
    Row("batch_of_answers", {"attack": ["[", times(100_000, '{"id":', ID, ',"result":{}},'), "{}]\n"]}),
    Row("many_values", {"attack": content(',"structuredContent":{"x":[1', times(3_900_000, ",1"), "]}")}, memory=256 * MIB),
    Row("many_objects", {"attack": content(',"structuredContent":{"x":[{}', times(950_000, ',{"a":"b"}'), "]}")}, memory=256 * MIB, quick=True),
    Row("many_blocks", {"attack": answer('{"content":[{"type":"text","text":"x"}', times(900_000, ',{"type":"text","text":"a line"}'), "]}")}, memory=256 * MIB),
    Row("many_odd_blocks", {"attack": answer('{"content":[{"type":"x"}', times(600_000, ',{"type":"y","z":[1,2]}'), "]}")}, memory=256 * MIB),
    Row("long_content", {"attack": answer('{"content":[{"type":"text","text":"', times(MIB // 2, "a line, \\u00e9\\n"), '"}]}')}, memory=256 * MIB),
    Row("many_escapes", {"attack": answer('{"content":[{"type":"text","text":"', times(8 * MIB, "\\n"), '"}]}')}, memory=256 * MIB),
    Row("more_escapes", {"attack": answer('{"content":[{"type":"text","text":"', times(10_600_000, "\\u0061"), '"}]}')}, memory=256 * MIB),
    Row("more_backslashes", {"attack": answer('{"content":[{"type":"text","text":"', times(30 * MIB, "\\\\"), '"}]}')}, memory=256 * MIB),
    Row("many_images", {"attack": answer('{"content":[{"type":"text","text":"x"}', times(60, ',{"type":"image","mimeType":"image/png","data":"', times(MIB // 8, "iVBO"), '"}'), "]}")}, memory=320 * MIB),
    Row("structured_keys", {"attack": content(',"structuredContent":{"x":0', numbered(74_000, ',"', '":"a line of text that is not short"'), "}")}, memory=128 * MIB),
    Row("structured_text", {"attack": content(',"structuredContent":{"x":"', times(3 * MIB, "a line\\n"), '"}')}, memory=256 * MIB),
    Row("long_structure", {"attack": content(',"structuredContent":{"x":"', times(MIB // 4, "a line, é\\n"), '"}')}, memory=256 * MIB),
    # Longer ones take longer than that to be copied once (SECURITY.md, Bounds).
    Row("spaces", {"attack": content(times(8 * MIB, " "))}),
    Row("fat_text", {"attack": content(',"x":"', times(8 * MIB, "x"), '"')}, memory=128 * MIB),
    Row("short_strings", {"attack": content(',"x":["a\\n"', times(8_000_000, ',"\\n"'), "]")}, quick=True),
    Row("keys_without_end", {"attack": content(times(1_500_000, ',"k":1'))}),
    Row("different_keys", {"attack": content(numbered(950_000, ',"', '":1'))}, memory=256 * MIB, quick=True),
    Row("hidden_name", {"attack": content(numbered(950_000, ',"', '":1'), ',"_meta":{"greenroom/details":1}')}, memory=256 * MIB),
    Row("long_meta", {"attack": content(',"_meta":{"greenroom/details":1', numbered(950_000, ',"', '":1'), "}")}, memory=256 * MIB),
    Row("large_input", {"initialize": error('{"code":-32601,"message":"no"}'), "server/discover": DISCOVERED, "attack": answer('{"resultType":"input_required","inputRequests":{"a":0', numbered(950_000, ',"', '":0'), "}}")}, memory=256 * MIB),
    Row("never_a_line", {"attack": [forever("x")]}, memory=256 * MIB),
    Row("endless_task", {"initialize": WITH_TASKS, "tools/list": answer('{"tools":[', TOOL, ',"execution":{"taskSupport":"required"}}]}'), "attack": answer('{"task":', ENDLESS, "}"), "tasks/get": [*answer(ENDLESS), times(1_000, '{"jsonrpc":"2.0","method":"notifications/tasks/status","params":', ENDLESS, "}\n")]}, calls=4, settings={"requestTotalTimeoutMs": 3_000}, quick=True),
    Row("twice_as_long", {"attack": [*answer('{"content":[]}'), *answer('{"content":[]}')]}, calls=4),
)  # fmt: skip

FLOODS: Final = (
    Row("yes", {"attack": [forever("y\n")]}, lasts=1.0, quick=True),
    Row("yes_at_start", {"start": [forever("y\n")]}, lasts=1.0),
    Row("empty_lines", {"attack": [forever("\n")]}, lasts=1.0),
    Row("pings", {"attack": [forever(*asked("ping"))]}, lasts=1.0),
    Row("server_requests", {"attack": [forever(*asked("sampling/createMessage", messages=[], maxTokens=1))]}, lasts=1.0),
    Row("roots", {"attack": [forever(*asked("roots/list"))]}, lasts=1.0),
    Row("messages", {"attack": [forever(said("notifications/message", level="info", data="x"))]}, lasts=1.0),
    Row("progress", {"attack": [forever(said("notifications/progress", progressToken=1, progress=1))]}, lasts=1.0),
    Row("changes", {"attack": [forever(said("notifications/tools/list_changed"))]}, lasts=1.0),
    Row("updates", {"attack": [forever(said("notifications/resources/updated", uri="x://y"))]}, lasts=1.0),
    Row("strange_answers", {"attack": [forever('{"jsonrpc":"2.0","id":987654,"result":{}}\n')]}, lasts=1.0, quick=True),
    Row("stderr", {"stderr": [forever("error\n")]}, lasts=1.0),
    Row("one_line_on_stderr", {"stderr": [forever("x")]}, lasts=1.0),
)  # fmt: skip

LEARNED: Final = (
    Row("deep_schema", {"tools/list": answer('{"tools":[', TOOL, ',"x":', *nested(964), "}]}")}, quick=True),
    Row("deeper_schema", {"tools/list": answer('{"tools":[', TOOL, ',"x":', *nested(20_000), "}]}")}),
    Row("deep_initialize", {"initialize": answer('{"protocolVersion":"2025-11-25","capabilities":{"tools":', *nested(964), '},"serverInfo":{"name":"x","version":"1"}}')}),
    Row("many_tools", {"tools/list": answer('{"tools":[', TOOL, "}", times(1_500_000, ',{"name":"a"}'), "]}")}, memory=256 * MIB),
    Row("many_parts", {"tools/list": answer('{"nextCursor":"', ID, '","tools":[', TOOL, "}", times(40, ',{"name":"a","x":[[]', times(19_000, ",[]"), "]}"), "]}")}, memory=256 * MIB),
    Row("many_pages", {"tools/list": answer('{"nextCursor":"x","tools":[', TOOL, "}", times(MIB // 40, ',{"name":"a","description":"xxxxxxxxxx"}'), "]}")}, memory=256 * MIB),
    Row("fat_tool", {"tools/list": answer('{"tools":[', TOOL, ',"description":"', times(4 * MIB, "x"), '"}]}')}),
    Row("fat_schema", {"tools/list": answer('{"tools":[', TOOL, ',"x":{"a":1', times(100_000, ',"b":{}'), "}}]}")}),
    Row("fat_initialize", {"initialize": answer('{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"},"instructions":"', times(4 * MIB, "x"), '"}')}),
    Row("others_names", {"tools/list": answer('{"tools":[', TOOL, '},{"name":"../../x"},{"name":""},{"name":"\\u0000\\u001b[2J"},{"name":"', times(MIB, "n"), '"}]}')}),
    Row("huge_skill", {"initialize": answer(SKILLFUL), "skills/list": answer('{"skills":[{"uri":"skill://a/SKILL.md","frontmatter":{"name":"a","description":"A"},"resources":[{"uri":"skill://a/SKILL.md",', OF_SKILL, ':104857600}]}]}')}),
    Row("many_skills", {"initialize": answer(SKILLFUL), "skills/list": answer('{"skills":[', numbered(9_000, '{"uri":"skill://', '/a/SKILL.md","frontmatter":{"name":"a","description":"A"},"resources":"dynamic"},'), '{}]}')}, memory=256 * MIB),
    Row("many_files", {"initialize": answer(SKILLFUL), "skills/list": answer('{"skills":[', times(80, '{"uri":"skill://a/SKILL.md","frontmatter":{"name":"a","description":"A"},"resources":[{"uri":"skill://a/SKILL.md",', OF_SKILL, ":1}", numbered(500, ',{"uri":"skill://a/', f'",{OF_SKILL}:1}}'), "]},"), "{}]}")}, memory=256 * MIB, quick=True),
    Row("deep_front_matter", {"initialize": answer(SKILLFUL), "skills/list": answer('{"skills":[{"uri":"skill://a/SKILL.md","frontmatter":{"name":"a","description":"A","x":', *nested(964), '},"resources":"dynamic"}]}')}),
    Row("others_resources", {"resources/list": answer('{"resources":[', times(10_000, '{"uri":"greenroom://calm0/x","name":"x"},'), '{"uri":"greenroom://calm0/x","name":"x"}]}')}),
)  # fmt: skip

# ---- servers, over HTTP --------------------------------------------------------------------------------------------

BOMB = packed(packed(packed(times(1 << 30, "\0"))))
HTTP: Final = (
    Row("stacked", {"attack": http(BOMB, Content_Encoding="gzip, gzip, gzip")}, over="http", quick=True),
    Row("stacked_initialize", {"initialize": http(BOMB, Content_Encoding="gzip, gzip, gzip")}, over="http"),
    Row("stacked_refusal", {"attack": http(BOMB, status="500 No", Content_Encoding="gzip,gzip,gzip")}, over="http"),
    Row("stacked_stream", {"GET": http(BOMB, kind="text/event-stream", Content_Encoding="gzip, gzip, gzip")}, over="http"),
    Row("packed", {"attack": http(packed(times(1 << 30, " ")), Content_Encoding="gzip")}, over="http", memory=256 * MIB),
    Row("packed_stream", {"attack": http(packed(times(1 << 30, "x")), kind="text/event-stream", Content_Encoding="gzip")}, over="http", memory=256 * MIB),
    Row("unknown_encoding", {"attack": http("x", Content_Encoding="zebra")}, over="http"),
    Row("endless_body", {"attack": http(forever("x"))}, over="http", memory=128 * MIB),
    Row("endless_refusal", {"attack": http(forever("x"), status="500 No")}, over="http"),
    Row("endless_head", {"attack": ["HTTP/1.1 200 OK\r\n", forever("A: b\r\n")]}, over="http"),
    Row("dripping", {"attack": http(forever(" ", ["sleep", 0.01]))}, over="http"),
    Row("small_data_lines", {"attack": stream(times(8 * MIB, "data:\n"), "\n")}, over="http", memory=256 * MIB),
    Row("endless_event", {"attack": stream("data: ", forever("x"))}, over="http", memory=256 * MIB),
    Row("comments", {"attack": stream(forever(":\n"))}, over="http", lasts=1.0),
    Row("empty_events", {"attack": stream(forever("data: {}\n\n"))}, over="http", lasts=1.0),
    Row("junk_events", {"attack": stream(forever("data: y\n\n"))}, over="http", lasts=1.0, quick=True),
    Row("event_ids", {"attack": stream(forever("id: ", times(1000, "\udcff"), "\n\n"))}, over="http", lasts=1.0),
    Row("retries", {"attack": stream(forever("retry: 99999999999999999999999\n\n"))}, over="http", lasts=1.0),
    Row("session_id", {"initialize": http('{"jsonrpc":"2.0","id":', ID, ',"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}}', Mcp_Session_Id="\udcff\udcfe")}, over="http"),
    Row("cookies", {"attack": http("{}", Set_Cookie="\udcff=\udcfe; expires=never; max-age=1e999; domain=..")}, over="http"),
    Row("status_line", {"attack": ["HTTP/1.1 99999999999 \udcff\r\n\r\n"]}, over="http"),
    Row("challenge", {"attack": ["HTTP/1.1 401 No\r\nWWW-Authenticate: ", times(60_000, 'Bearer a="'), "\r\n\r\n"]}, over="http"),
    Row("charset", {"attack": http("{}", kind="application/json; charset=zlib")}, over="http"),
    Row("deep_body", {"attack": http(*content(',"x":', *nested(5000)))}, over="http"),
    Row("long_body", {"attack": http(*answer('{"content":[{"type":"text","text":"', times(MIB // 2, "a line, \\u00e9\\n"), '"}]}'))}, over="http", memory=256 * MIB),
    Row("long_event", {"attack": stream("data: ", *answer('{"content":[{"type":"text","text":"', times(MIB // 2, "a line, \\u00e9\\n"), '"}]}'), "\n")}, over="http", memory=256 * MIB),
    Row("spaces_in_a_body", {"attack": http(*content(times(4 * MIB, " ")))}, over="http"),
    Row("many_listed", {"server/discover": http(*DISCOVERED), "tools/list": http(*answer('{"resultType":"complete","tools":[', TOOL, "}", times(90_000, ',{"name":"a","description":"', times(400, "x"), '"}'), "]}"))}, over="http", entry={"era": "stateless"}, memory=256 * MIB),
    Row("odd_headers", {"server/discover": http(*DISCOVERED), "tools/list": http(*answer('{"resultType":"complete","tools":[', TOOL, "}", times(9_000, ',{"name":"a","description":"', times(1000, "x"), '","inputSchema":{"properties":{"a":{"x-mcp-header":""}}}}'), "]}"))}, over="http", entry={"era": "stateless"}, memory=256 * MIB),
    Row("batch_body", {"attack": http("[{}", times(5 * MIB, ",{}"), "]")}, over="http", memory=256 * MIB),
)  # fmt: skip

# ---- clients -------------------------------------------------------------------------------------------------------

LOOKS: Final = (
    {},
    {"search": "echo"},
    {"server": "far7"},
    {"tool": "nobodys_tool"},
    {"describe": "far9_x"},
    {"offset": 19_000},
)
PING = '{"jsonrpc":"2.0","id":"h","method":"ping"}\n'


def called(name: str, *value: Piece) -> list[Piece]:
    """Two calls with this argument: through the `mcp` tool, and by the tool's own name. Each door has one of them."""
    start, end = '{"jsonrpc":"2.0","id":"h","method":"tools/call","params":{"name":"', "}}\n"
    whole: list[Piece] = [f'{{"{name}":', *value, "}"]
    return [start, 'mcp","arguments":{"tool":"calm0_echo","args":', *whole, "}", end, start, 'calm0_echo","arguments":', *whole, end]  # fmt: skip


CLIENTS: Final = (
    Row("client_deep", client=['{"jsonrpc":"2.0","id":"h","method":"tools/call","params":', *nested(964), "}\n", PING], answers=2, quick=True),
    Row("client_bottomless", client=[*nested(2 * MIB), "\n", PING], answers=1, memory=128 * MIB),
    Row("client_batch", client=["[{}", times(5 * MIB, ",{}"), "]\n", PING], answers=1, memory=256 * MIB),
    Row("client_long_name", client=['{"jsonrpc":"2.0","id":"h","method":"tools/call","params":{"name":"', times(MIB, "n"), '"}}\n', PING], answers=2),
    Row("client_small_values", client=['{"jsonrpc":"2.0","id":"h","method":"tools/call","params":{"name":"mcp","arguments":{"x":[[]', times(7 * MIB, ",[]"), "]}}}\n", PING], answers=1, memory=256 * MIB),
    Row("client_long_text", client=[*called("text", '"', times(MIB // 2, "a line, \\u00e9\\n"), '"'), PING], answers=3, memory=256 * MIB),
    Row("client_half_character", client=[*called("text", '"\\ud83d', times(8 * MIB, "x"), '"'), PING], answers=3, memory=256 * MIB, quick=True),
    Row("client_many_values", client=[*called("x", "[1", times(1_900_000, ",1"), ', ""', times(MIB // 2, " "), "]"), PING], answers=3, memory=256 * MIB, quick=True),
    Row("client_many_objects", client=[*called("x", "[{}", times(950_000, ',{"a":"b"}'), ', ""', times(MIB // 2, " "), "]"), PING], answers=3, memory=256 * MIB),
    Row("client_different_keys", client=[*called("x", "0", numbered(400_000, ',"', '":0')), PING], answers=3, memory=256 * MIB, quick=True),
    Row("client_many_params", client=['{"jsonrpc":"2.0","id":"h","method":"tools/call","params":{"name":"mcp"', numbered(950_000, ',"', '":0'), "}}\n", PING], answers=2, memory=256 * MIB),
    Row("client_many_arguments", client=['{"jsonrpc":"2.0","id":"h","method":"tools/call","params":{"name":"mcp","arguments":{"tool":"calm0_echo"', numbered(950_000, ',"', '":0'), "}}}\n", PING], answers=2, memory=256 * MIB),
    Row("client_keys_as_text", client=['{"jsonrpc":"2.0","id":"h","method":"tools/call","params":{"name":"mcp","arguments":{"tool":"calm0_echo","args":"{\\"x\\":0', numbered(400_000, ',\\"', '\\":0'), '}"}}}\n', PING], answers=2, memory=256 * MIB),
    Row("client_args_as_text", client=['{"jsonrpc":"2.0","id":"h","method":"tools/call","params":{"name":"mcp","arguments":{"tool":"calm0_echo","args":"{\\"x\\":[[]', times(5 * MIB, ",[]"), ']}"}}}\n', PING], answers=2, memory=256 * MIB),
    Row("client_long_notification", client=['{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":[0', times(4 * MIB, ",0"), "]}}\n", PING], answers=1, memory=128 * MIB),
    Row("client_long_meta", client=['{"jsonrpc":"2.0","id":"h","method":"tools/call","params":{"name":"mcp","_meta":{"x":[0', times(400_000, ",0"), ', ""', times(MIB // 2, " "), "]}}}\n", PING], answers=2, memory=128 * MIB),
    Row("client_forged_trace", client=['{"jsonrpc":"2.0","id":"h","method":"tools/call","params":{"name":"mcp","arguments":{"tool":"calm0_echo"},"_meta":{"traceparent":"00-', times(40_000, "0f"), '-01","tracestate":"', times(30_000, "a=1,"), '","baggage":"', times(20_000, "a=1;"), '"}}}\n', PING], answers=2, quick=True),
    Row("client_guessed_states", client=[times(2_000, *asked("tools/call", name="mcp", arguments={"greenroom_state": "guessed", "tool": "calm0_echo"}, _meta={"greenroom/state": "guessed"})), PING], answers=2_001, settings={"http": {"stateHandles": True}}, needs_lines=True, quick=True),
    Row("client_state_in_args", client=['{"jsonrpc":"2.0","id":"h","method":"tools/call","params":{"name":"mcp","arguments":{"tool":"calm0_echo","args":"{\\"greenroom_state\\":{},\\"x\\":[[]', times(5 * MIB, ",[]"), ']}"}}}\n', PING], answers=2, settings={"http": {"stateHandles": True}}, memory=256 * MIB),
    Row("client_long_introduction", client=['{"jsonrpc":"2.0","id":"h","method":"initialize","params":{"x":"', times(8 * MIB, "x"), '"}}\n', PING], answers=2, memory=128 * MIB),
    Row("client_pings", client=[times(50_000, PING)], answers=50_000, memory=128 * MIB, needs_lines=True),
    Row("client_methods", client=[times(50_000, *asked("no/such/method"))], answers=50_000, memory=128 * MIB, needs_lines=True),
    Row("client_junk", client=[times(50_000, "y\n"), PING], answers=1, needs_lines=True),
    Row("client_many_tasks", client=[times(2_000, *asked("tools/call", name="mcp", arguments={}, task={"ttl": 10**30})), times(98_000, *asked("tools/call", name="x", task={}))], answers=100_000, memory=256 * MIB, needs_lines=True),
    Row("client_guessed_tasks", client=[times(100_000, *asked("tasks/get", taskId="guessed"))], answers=100_000, memory=256 * MIB, needs_lines=True),
    Row("client_cancels", client=[times(100_000, said("notifications/cancelled", requestId=1)), PING], answers=1, needs_lines=True),
)  # fmt: skip

CONFIGURED: Final = (
    Row(
        "many_servers",
        client=[
            line
            for request in (
                asked("tools/list"),
                *(asked("tools/call", name="mcp", arguments=look) for look in LOOKS),
            )
            for line in request
        ],
        needs_lines=True,
        answers=7,
        servers=20_000,
        memory=512 * MIB,
    ),
    Row(
        "many_discoveries",
        {"attack": content()},
        servers=20_000,
        settings={"bootstrap": True},
        lasts=1.0,
        memory=512 * MIB,
    ),
)

COMMANDS: Final = (
    Row("silent_commands", control=["{"], connections=200, lasts=0.5),
    Row("endless_command", control=[times(40 * MIB, "x")], lasts=0.5, memory=128 * MIB),
    Row("deep_command", control=[*nested(5000), "\n"], lasts=0.5),
    Row("many_commands", control=[times(5000, '{"method":"status"}\n')], lasts=1.0),
)

# ---- files, and neighbours of the same machine ---------------------------------------------------------------------

# What a dead gateway has left of tasks: one file is honest, the others are not. On stdio its owner is known.
LEFT = "tasks/gateway-" + "l" * 22
OWNER = hashlib.sha256(b"[null,null,true]").hexdigest()


def task_file(number: int) -> str:
    return f"{LEFT}/{OWNER}-{number:032}.task"


def task_head(number: int, **more: object) -> str:
    said = {
        "id": f"{number:032}", "owner": OWNER, "modern": False, "status": "completed", "message": "",
        "created": "2026-11-27T00:00:00.000Z", "changed": "2026-11-27T00:00:00.000Z", "ttl": 3_600_000, "until": 1 << 33,
        **more,
    }  # fmt: skip
    return json.dumps(said)


LEFT_TASKS: Final = {
    task_file(0): [task_head(0, size=14), '\n{"content":[]}'],
    task_file(1): FIFO,
    task_file(2): FOLDER,
    task_file(3): LINK,
    task_file(4): [times(63 * MIB, "x")],
    task_file(5): [task_head(5, size=60 * MIB), "\n{", times(59 * MIB, " ")],
    task_file(6): ['{"id":', *nested(1 * MIB), "}\n"],
    task_file(7): [task_head(7, status="failed", error={"code": 10**400, "message": "x"}), "\n"],
    task_file(8): [task_head(8, status="working"), "\n"],
    task_file(9): [task_head(9, message="x" * (900 << 10), size=2), "\n{}"],
    **{
        f"tasks/gateway-{number:022}/{number:064}-{number:032}.task": [task_head(number), "\n"]
        for number in range(100, 400)
    },
    **{f"tasks/gateway-{number:022}/lock": FIFO for number in range(400, 500)},
}

LOOK_AT_TASKS: Final = [
    numbered(20, f'{{"jsonrpc":"2.0","id":"{method}-{number}-', f'","method":"{method}","params":{{"taskId":"{number:032}"}}}}\n')
    for number in range(10)
    for method in ("tasks/get", "tasks/result" if number != 8 else "tasks/cancel", "tasks/list")
]  # fmt: skip

FILES: Final = (
    Row("left_tasks", files=LEFT_TASKS, settings={"tasks": {"keep": "~/tasks"}}, client=[*LOOK_AT_TASKS, PING], answers=1, lasts=1.0, memory=256 * MIB, needs_lines=True, quick=True),
    Row("cache_deep", files={CACHE: ['{"version":1,"entries":', *nested(964), "}"]}, quick=True),
    Row("cache_bottomless", files={CACHE: nested(8 * MIB)}, memory=256 * MIB),
    Row("cache_small_values", files={CACHE: ['{"version":1,"entries":[[]', times(10 * MIB, ",[]"), "]}"]}, memory=1024 * MIB),
    Row("cache_fifo", files={CACHE: FIFO}),
    Row("cache_folder", files={CACHE: FOLDER}),
    Row("cache_lock_fifo", files={CACHE + ".lock": FIFO}),
    Row("events_fifo", files={"events": FIFO}, options=("--events", "events")),
    Row("events_full", options=("--events", "/dev/full")),
    Row("bare_environment", {"attack": content()}, calls=4, is_bare=True),
    Row("old_sockets", files={f"cache/greenroom/run/0123456789ab-{9_000_000 + n}.sock": ["x"] for n in range(2000)}),
)  # fmt: skip

# Nobody of theirs is left at the end: that is asked of every row.
PROCESSES: Final = (
    Row("left_its_session", {"start": [["leave", "session"]]}),
    Row("left_its_parent", {"start": [["leave", "session", "parent"]]}, takes_orphans=True),
    Row("left_its_user", {"start": [["leave", "user", "session"]]}),
)

# ---- HTTP APIs, and their documents ---------------------------------------------------------------------------------

OPENAPI = '{"openapi":"3.1.0","info":{"title":"x","version":"1"},'
OK = '"responses":{"200":{"description":"x"}}'

APIS: Final = (
    Row("api_endless", {"attack": http(forever("x"))}, over="api", memory=192 * MIB),
    Row("api_deep", {"attack": http('{"a":', *nested(5000), "}")}, over="api", calls=4),
    Row("api_many_values", {"attack": http('{"x":[1', times(8 * MIB, ",1"), "]}")}, over="api", memory=256 * MIB, quick=True),
    Row("api_many_objects", {"attack": http('{"x":[{}', times(100_000, ',{"a":"b"}'), "]}")}, over="api", memory=128 * MIB),
    Row("api_escapes", {"attack": http('"', times(MIB, "\\u0001"), '"')}, over="api", memory=256 * MIB),  # more would be the program's own decoding
    Row("api_bytes", {"attack": http(times(8 * MIB, "\udcff"), kind="image/png")}, over="api", memory=256 * MIB),
    Row("api_packed", {"attack": http(packed(times(1 << 30, "x")), Content_Encoding="gzip")}, over="api", memory=256 * MIB),
    Row("api_charset", {"attack": http("{}", kind="application/json; charset=zlib")}, over="api"),
    Row("api_odd_type", {"attack": http("x", kind="\udcff/\udcfe; charset=\udcff")}, over="api"),
    Row("api_wants_time", {"attack": http("", status="429 No", Retry_After="9" * 400)}, over="api"),
    Row("api_wants_none", {"attack": http("", status="503 No", Retry_After="-1")}, over="api"),
    Row("api_refusal", {"attack": http(forever("no "), status="400 No")}, over="api"),
    Row("api_elsewhere", {"attack": http("", status="302 Go", Location="file:///etc/passwd")}, over="api", calls=4),
    Row("document_endless", {"document": http(forever("x"))}, over="api", memory=192 * MIB),
    Row("document_deep", {"document": http(OPENAPI, '"paths":{"/a":{"get":', *nested(5000), "}}}")}, over="api"),
    Row("document_of_references", {"document": http(OPENAPI, '"paths":{"/a":{"get":{', OK, ',"requestBody":{"content":{"application/json":{"schema":{"$ref":"#/components/schemas/0"}}}}}}},"components":{"schemas":{', numbered(30_000, '"', '":{"type":"object","properties":{"a":{"$ref":"#/components/schemas/0"},"b":{"$ref":"file:///etc/passwd"}}},'), '"x":{}}}}')}, over="api", memory=256 * MIB),
    Row("document_in_a_circle", {"document": http(OPENAPI, '"paths":{"/a":{"$ref":"#/paths/~1b"},"/b":{"$ref":"#/paths/~1a"}}}')}, over="api"),
    Row("document_of_operations", {"document": http(OPENAPI, '"paths":{', numbered(60_000, '"/', '":{"get":{' + OK + "}},"), '"/x":{}}}')}, over="api", memory=256 * MIB, quick=True),
    Row("document_of_one_name", {"document": http(OPENAPI, '"paths":{', numbered(20_000, '"/', '":{"get":{"operationId":"x",' + OK + "}},"), '"/x":{}}}')}, over="api", memory=256 * MIB),
    Row("document_of_everything", {"document": http(OPENAPI, '"paths":{', numbered(300, '"/', '":{"post":{' + OK + ',"requestBody":{"content":{"application/json":{"schema":{"$ref":"#/components/schemas/all"}}}}}},'), '"/x":{}},"components":{"schemas":{', numbered(20_000, '"', '":{"properties":{"a":{"$ref":"#/components/schemas/all"}}},'), '"all":{"anyOf":[', numbered(20_000, '{"$ref":"#/components/schemas/', '"},'), '{}],"enum":[', numbered(20_000, "", ","), "0]}}}}")}, over="api", memory=256 * MIB),
    Row("document_of_names", {"document": http(OPENAPI, '"paths":{"/a":{"get":{"operationId":"', times(MIB, "\\u0000\\u001b[2J"), '",', OK, "}}}}")}, over="api", memory=128 * MIB),
    Row("document_of_variables", {"document": http(OPENAPI, '"servers":[{"url":"', times(20_000, "{a}"), '","variables":{"a":{"default":"', times(80_000, "x"), '"}}}],"paths":{"/a":{"get":{', OK, '}}}}')}, over="api", memory=128 * MIB),
    Row("document_of_one_item", {"document": http(OPENAPI, '"x":{"get":{' + OK + ',"summary":" ', times(80_000, "x"), '"}},"paths":{', numbered(4_000, '"/', '":{"$ref":"#/x"},'), '"/x":{}}}')}, over="api", memory=256 * MIB),
    Row("document_of_bombs", {"document": http("a: &a [x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e]\ng: [*f,*f,*f,*f,*f,*f,*f,*f]\nopenapi: 3.1.0\npaths: *g\n", kind="text/yaml")}, over="api", memory=192 * MIB),
)  # fmt: skip

KINDS: Final = {
    "answers": ANSWERS,
    "floods": FLOODS,
    "lists": LEARNED,
    "processes": PROCESSES,
    "HTTP answers": HTTP,
    "HTTP APIs": APIS,
    "clients": CLIENTS,
    "configurations": CONFIGURED,
    "commands": COMMANDS,
    "files": FILES,
}
ROWS: Final = tuple(row for rows in KINDS.values() for row in rows)
