"""Changes configuration files of people and of other programs, and leaves everything else in them as it was.

* `_json_edit`  puts a value into the text of a JSON file with comments, or takes one out
* `_toml_edit`  the same for the tables of a TOML file
* `_mask`       a text without its values, so that a diff shows no secret
* `_write`      replaces a file atomically; keeps a backup; puts it back
* `_clients`    the MCP clients that we know: their files, and how our entry looks in each
* `_finding`    what `greenroom doctor` finds: in the configuration (`_checks`), at a running gateway (`_running`), and
                when it starts every server once (`_trial`)
* `_entries`    our entry in a client's file, and the servers that move from there to our own file

Everything is synchronous, and only the commands that change or check files import it.
"""
