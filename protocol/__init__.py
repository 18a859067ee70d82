"""What may be said: the lifecycle table, messages, events, errors, configuration, names, records. Pure data.

Other rooms may import:

* `address`: server and scope: who an actor is
* `bounds`: every bound on input from outside, in one table
* `content`: results as content blocks for a model, within bounds; schemas as text
* `errors`: every error a user can meet; a problem of a configuration and its place
* `event_records`: an event as JSON
* `events`: every event, and the stages of a start
* `fault_plan`: the words of fault scripts, and which faults are due when
* `fault_scripts`: what goes wrong with a server, as data
* `header_params`: what the stateless era repeats in HTTP headers
* `jsonrpc`: JSON-RPC in both eras: all names of the four modules below it
* `jsonrpc.encoding`: values as JSON bytes and back; lone surrogates repaired
* `jsonrpc.incoming`: the envelope of a message, and its payload when somebody asks
* `jsonrpc.outgoing`: requests, notifications and replies as lines, with what each era carries in `_meta`
* `jsonrpc.terms`: versions, error codes, names in `_meta`; what can be wrong with a message
* `lifecycle`: the lifecycle table
* `links`: how one Greenroom has another carry calls out: hello, welcome, and what has moved
* `model_calls`: tool calls as a model's API gives them, and their answers as it takes them
* `model_tools`: tools as a model's API takes them: names, schemas, and the way back
* `json_values`: what a value is in the sense of JSON: an object, an array, a number
* `near_names`: which known name somebody may have meant
* `lazy_patterns`: expressions that are compiled when they are first used
* `result`: `ToolResult` and the other results an embedder gets
* `long_text`: a text of megabytes, looked through and read in pieces
* `malformed_content`: what is in a result whose content has another form than the protocol says
* `safe_text`: text from outside as a terminal or a model may be shown it
* `status`: the status of a server as one record
* `tree`: a room as a tree, at one moment, and how it is shown
* `tasks`: work that goes on after a server has answered a call, in both forms
* `trace_context`: the trace that a request belongs to, as W3C writes it
* `typed_arguments`: texts as arguments of a tool, read by its schema
* `upstream_error`: an error of another Greenroom, which carried a call out for us, and what the direct door says of one
* `value_count`: how many values a JSON text has, counted without reading it
* `version`: the version, cheap to import
* `version_differences`: what a version of the protocol does not know, in a form that it does
* `wait_intervals`: what somebody waited for
"""
