"""Where the search begins: a few good ones of each kind, and what was found, which stays found."""

from __future__ import annotations

import gzip
import zlib
from typing import Final

import msgspec

_JSON: Final = (
    b"{}", b"[]", b'{"a":[1,2.5,true,null,"x\\u00e9\\ud83d\\ude00"]}', b'{"a":"\\ud83d"}', b"[" * 900 + b"]" * 900,
    b'{"a":' * 2000, b"\xff", b'{"a":1e999}', b"1" * 5000, b"", b"\xef\xbb\xbf{}", b'{"a":"\\\\ud83d","\\udc00":1}',
)  # fmt: skip
_MESSAGES: Final = (
    b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"x"}],"_meta":{"a":1}}}',
    b'{"jsonrpc":"2.0","id":"a","error":{"code":-32601,"message":"no","data":{}}}',
    b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":2}}',
    b'[{"jsonrpc":"2.0","id":1,"result":{}},{"jsonrpc":"2.0","id":2,"result":{}}]',
    b'{"jsonrpc":"2.0","id":1.0,"method":"tools/call","params":{"name":"x","arguments":null,"_meta":null}}',
    b'{"id":"\\ud83d","method":"ping"}',
)
_RESULT: Final = (
    b'{"content":[{"type":"text","text":"x"},{"type":"image","data":"AA==","mimeType":"image/png"},{"type":"resource",'
    b'"resource":{"uri":"a://b","blob":"AA=="}},{"type":"resource_link","uri":"a://b","name":"n"}],'
    b'"structuredContent":{"a":1},"isError":true}'
)
_RECORDS: Final = (
    b'{"tools":[{"name":"a","inputSchema":{"type":"object","properties":{"x":{"type":["string","null"],"enum":["a"],'
    b'"$ref":"#/$defs/y"}},"required":["x"],"$defs":{"y":{"anyOf":[{"type":"string"}]}}},"outputSchema":{}},'
    b'{"name":"a-b"},{"name":"a_b"}],"resources":[{"uri":"a://b","name":"n"},{"uri":"greenroom://a/a://b","name":""}],'
    b'"templates":[{"uriTemplate":"a://{x}/{y}","name":"n"}],"prompts":[{"name":"p","arguments":[{"name":"x"}]}]}'
)
_CONFIG: Final = (
    (
        b'{"mcpServers":{"a":{"command":"x","args":["-k${A:-b}"],"env":{"T":"$env:X"},"lifecycle":"eager"},"b":{"url":'
        b'"https://u:p@h/?k=v","headers":{"Authorization":"Bearer ${T}"}}},"settings":{"maxConnections":3,"toolPrefix":'
        b'"none"},"imports":["cursor"],}'
    ),
    b'{"servers":{"a":{"type":"stdio","command":"${input:x}"}} /* no */ }',
)

_AUDIT: Final = (
    b'{"v":1,"seq":1,"kind":"opened","prev":"0000000000000000000000000000000000000000000000000000000000000'
    b'000","hash":"0e5838f8b19c75ac1769c41ead7f1b31eca53be3d41681f0bc9e1dcb2913c29a"}'
    b"\n"
)

_TASK: Final = (
    (
        b'{"id":"' + b"a" * 32 + b'","owner":"' + b"0" * 64 + b'","modern":true,"status":"completed","message":"half",'
        b'"created":"2026-11-27T00:00:00.000Z","changed":"2026-11-27T00:00:01.000Z","ttl":60000,"until":8589934592.0,'
        b'"size":14,"is_error":false,"error":null}\n{"content":[]}'
    ),
    (
        b'{"id":"' + b"a" * 32 + b'","owner":"' + b"0" * 64 + b'","modern":false,"status":"failed","message":"",'
        b'"created":"","changed":"","ttl":1,"until":8e9,"error":{"code":-32603,"message":"no","data":{"reach":"sent"}}}\n'
    ),
    (
        b'{"id":"' + b"a" * 32 + b'","owner":"' + b"0" * 64 + b'","modern":false,"status":"working","message":"",'
        b'"created":"x","changed":"x","ttl":0,"until":8e9,"error":1e999}\n'
    ),
)  # fmt: skip

SEEDS: Final[dict[str, tuple[bytes, ...]]] = {
    "envelope": (*_MESSAGES, *_JSON),
    "large": (*_MESSAGES, *_JSON, b'{"id":1, "result":{"a":"' + b"x" * 40 + b'","b":[' + b" " * 60 + b'1]}} '),
    "lenient_parts": (*_MESSAGES, *_JSON),
    "mended": (b'"\\ud83d\\ud83d\\ude00\\\\ud83d"', *_JSON),
    "lines": (b"\1\2\3\4one\ntwo\n" + b"x" * 70 + b"\nthree\nfour",),
    "events": (b"\1\2\3\4data: a\r\ndata: b\r\rid: 1\nretry: 10\nevent: e\n\ndata: c\n\n" + b"data: " + b"x" * 70,),
    "stderr": (
        b'\0\0\0\0Traceback (most recent call last):\n  File "x.py", line 1, in f\nValueError: no\n',
        b"\1\2\3\4\x1b[31merror: it is at https://u:p@h\x1b[0m\nnpm ERR! code E404\n    at f (x.js:1:2)\nx() \n",
    ),
    "result": (_RESULT, *_JSON),
    "records": (_RECORDS, *_JSON),
    "hidden": (
        b'{"name":"a","inputSchema":{"properties":{"x\\u200b":{"enum":["a\\u202e","a"]},"x":{},"":{},"\\u200b":{}}}}',
        b'{"x\\u200b":1,"x":2,"x_2":3,"arguments":[{"name":"p\\u00ad"}],"description":"\xf3\xa0\x81\x81x"}',
        *_JSON,
    ),
    "items": (b'{"tools":[{"name":"a"},{"name":"b","x":[[{}]]},7,{"n":1}],"nextCursor":"c","_meta":{}}', *_JSON),
    "audit_lines": (_AUDIT, _AUDIT + _AUDIT[:20], _AUDIT[:-1], *_JSON),
    "text": (b"\x1b[31mred\x1b[0m \xc2\x9b2J \x1b]0;t\x07 \xe2\x80\xae\r\n\xe2\x80\xa8x",),
    "body": (b"\0\1\2\3\4" + gzip.compress(b"x" * 100), b"\1\1\2\3\4" + zlib.compress(b"x" * 100)),
    "request_headers": (b'{"Authorization":"Bearer x","X-Signed":"a"}', b'{"Host":"x"}', b'{"a b":"\\ud83d"}', *_JSON),
    "token": (
        (
            b'{"alg":"HS256","kid":"k","typ":"at+jwt"}\n{"iss":"http://127.0.0.1","aud":["http://127.0.0.1/mcp"],'
            b'"sub":"x","exp":99999999999,"nbf":1,"iat":1,"scope":"a b","client_id":"c","p":"q","azp":1}'
        ),
        b'{"alg":"none","crit":["b64"],"b64":false}\n{"scp":["a",1],"exp":"99999999999"}',
        b'{}\n{"iss":"http://127.0.0.1","aud":"http://127.0.0.1/mcp","sub":"x","scope":"a","exp":1' + b"0" * 400 + b"}",
        b"a.b.c",
        *_JSON,
    ),
    "issuer_keys": (
        b'{"keys":[{"kty":"RSA","kid":"k","n":"0vx7","e":"AQAB","alg":"RS256","use":"sig"}]}',
        b'{"keys":[{"kty":"EC","kid":"k","crv":"P-256","x":"AA","y":"AA"}]}',
        b'{"keys":[{"kty":"OKP","kid":"k","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}',
        b'{"keys":[{"kty":"OKP","kid":"k","crv":"X25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"},7,null]}',
        *_JSON,
    ),
    "kept_output": (
        b'{"output":"0123456789abcdef","offset":12}',
        b'{"output":"../output-0123456789abcdef","offset":1e9}',
        b"\1\2one\ntwo\n\nthree\xc3\xa9\xf0\x9f\x98\x80\nfour",
    ),
    "door": (*_MESSAGES, *_JSON),
    "command": (b'{"method":"mcp","params":{"arguments":{"tool":"x"}}}', *_JSON),
    "patterns": (b"a*b?[c]\nabc", b"${A:-${B}}$env:X{env:Y}~\nx", b"greenroom://a%20b/c://d\nx"),
    "jsonc": (*_CONFIG, *_JSON, b"// x\n{'a': 0x1f, b: +Infinity,}"),
    "config": (*_CONFIG, *_JSON),
    "redaction": (b"\5Authorization: Bearer ", b"\0https://user:pass@host/?token="),
    "kept_task": (*_TASK, *_JSON),
    "catalogue": (b'{"version":1,"entries":{"h s":{"fetched_at":1e9,"revision":1,"body":{"tools":[]}}}}', *_JSON),
    "yaml_text": (
        b"mcpServers:\n  a: &x\n    command: x\n    args: [-k, '1', no, 0777, 12:30]\n  b: {<<: *x, env: {T: ~}}\n",
        b"a: !vault x\n? [b]\n: |\n  c\n",
        b"a: &a [*a]\n",
        *_CONFIG,
    ),
    "api_document": (
        (
            b'{"openapi":"3.1.0","info":{"title":"t"},"paths":{"/a/{b}":{"parameters":[{"name":"b","in":"path","style":"matrix"},'
            b'{"name":"q","in":"query","style":"deepObject","schema":{"$ref":"#/components/schemas/A"}},{"name":"h","in":"header",'
            b'"content":{"application/json":{}}},{"name":"c","in":"cookie"}],"post":{"operationId":"o","requestBody":{"content":'
            b'{"multipart/form-data":{"schema":{"type":"object","properties":{"f":{"type":"string","format":"binary"}}},'
            b'"encoding":{"f":{"contentType":"image/png"}}}}},"responses":{"200":{"content":{"application/json":{"schema":'
            b'{"type":"array","items":{"$ref":"#/components/schemas/A"}}}}}}}}},"components":{"schemas":{"A":{"nullable":true,'
            b'"allOf":[{"$ref":"#/components/schemas/A"}],"properties":{"a":{"readOnly":true}}}}}}'
        ),
        (
            b'{"swagger":"2.0","host":"h","basePath":"/v1","consumes":["application/x-www-form-urlencoded"],"paths":{"/a":{"get":'
            b'{"parameters":[{"name":"a","in":"query","type":"array","collectionFormat":"pipes"},{"name":"f","in":"formData",'
            b'"type":"file"}],"responses":{"200":{"schema":{"type":"string"}}}},"post":{"parameters":[{"in":"body","name":"b",'
            b'"schema":{"type":"object","properties":{"c":{}}}}]}}}}'
        ),
        b"openapi: 3.1\npaths:\n  /a:\n    get: &x {parameters: [{name: a, in: query}]}\n    put: {<<: *x, x: y}\n",
        b'{"openapi":"3.1.0","paths":{"/a?b={c}#d":{"$ref":"#/paths/~1e"},"/e":{"query":{},"additionalOperations":{"X":{}}}}}',
        *_JSON,
    ),
    "api_answer": (
        b'application/json; charset=utf-16\n200\n\xff\xfe{\0}\0',
        b"image/png\n404\n\x89PNG",
        b'text/plain\n302\n{"a":1}',
        *_JSON,
    ),
    "http_door": (
        (
            b"\x05\x30\x60\x90POST /mcp?x HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}POST / HTTP/1.1\r\nX: \r\n"
            b"Transfer-Encoding: chunked\r\n\r\n2;a=b\r\n{}\r\n1\r\n \r\n0\r\nY: z\r\n\r\nGET / HTTP/1.0\r\n\r\n"
        ),
        (
            b"\x15\x35\x55\x75POST / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\n{}"
            b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n"
        ),
        b"\x01\x02\x03\x04CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        b"\x01\x02\x21\x22POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n{}",
        b"\x01\x02\x21\x22POST / HTTP/1.1\r\nContent-Length: 999\r\nContent-Length: 1\r\n\r\n{}\x00",
    ),
    "env_file": (b"\xef\xbb\xbfexport A=1 # x\n\nB='two\nlines'\nC=\"\\x41${A}\"\r\nD\n'E'=\n", b"A=\0\n", b"=x\n"),
    "skills": (
        (
            b'{"uri":"skill://a/t/SKILL.md","frontmatter":{"name":"t","description":"d","x":[1]},"resources":[{"uri":'
            b'"skill://a/t/SKILL.md","size":1,"digest":"sha256:' + b"0" * 64 + b'"},{"uri":"skill://a/t/b/c","size":0,'
            b'"digest":"sha256:' + b"f" * 64 + b'"}],"_meta":{"greenroom/x":1}}'
        ),
        b'{"uri":"x://t/SKILL.md","frontmatter":{"name":"t","description":"d"},"resources":"dynamic"}',
        b'{"contents":[{"uri":"a","blob":"AA=="}]}',
        b"---\nname: t\n---\nBody.\n",
    ),
    "pins": (
        (
            b'{"version":1,"servers":{"k s":{"since":1e9,"seen":1e9,"tools":{"t":"a","u":""},"later":{"t":2e9},'
            b'"changed":{"t":"b"}}}}'
        ),
        *_JSON,
    ),
    "search_forms": (
        msgspec.msgpack.encode((["creat", "issu"], [(b"d" * 16, "a", "s a", bytes(4) + b"\1\0\0\0", b"\x80\x40")])),
        msgspec.msgpack.encode(("1 0.1.0", {"h s": (1e9, b"c" * 16, b"\x92\x90\x90")})),
        b"",
    ),
    "vectors": (
        msgspec.msgpack.encode(("1", "model", b"c" * 16, msgspec.msgpack.encode({b"d": (1e9, b"1234")}))),
        b"",
    ),
    "meaning_model": (
        b'\x40\0\0\0\0\0\0\0{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}          1234',
        b'{"model_type":"bert","num_attention_heads":0,"num_hidden_layers":2,"layer_norm_eps":1e999}',
        b'{"normalizer":{"lowercase":true},"model":{"vocab":{"[CLS]":9,"[SEP]":-99,"[UNK]":0.5}}}',
        *_JSON,
    ),
    "agreements": (
        b'{"version":1,"trusted":{"' + b"a" * 64 + b'":{"file":"/a/.mcp.json","directory":"/a","since":1}}}',
        b'{"version":1,"trusted":{"a":{"file":[],"directory":{}}}}',
        *_JSON,
    ),
}  # fmt: skip
