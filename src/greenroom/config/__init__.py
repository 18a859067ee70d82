"""The one configuration: its model, how files become it, where secrets come from, and whose file is obeyed.

For programs it is `greenroom.config`: the model, with the names of `_config_names`.

Other rooms may import:

* `argument_checks`: what a program gives at the public door, checked where it gives it
* `asked_values`: values that a command or the keyring gives: recognised in a text
* `credentials`: what is a credential, by source, name and form
* `file_formats`: JSON as people write it, and YAML
* `file_watcher`: tells when a file may have changed
* `files`: finding and reading the files, from a path, a dict or nothing
* `definition_identity`: which server a definition is: its hash, and whether a change is policy only
* `importers`: servers configured for other programs
* `command_faults`: why a command cannot be started, and what to do
* `installers`: commands that may install a server before running it
* `keys`: what a key of a file is, and the keys that are objects with keys of their own
* `known_secrets`: the secrets of a room, by server and session, and of all
* `rate_texts`: how often: the texts of `limits` and `loopGuard`
* `masking`: a configuration printed without its secrets, each value with its source
* `member_lines`: a file of JSON with a line for each of thousands of members
* `model`: `ServerDefinition`, `Settings`, `Profile`, `Config`, with the keys of a file; what an entry and
  the settings say together
* `parse`: from the content of files to one `Config`: servers, settings, profiles, merged layers
* `private_files`: files, folders and sockets of this user: opened safely, or changed under a lock
* `value_kinds`: kinds of values: one value of a file becomes one value of the model
* `references`: `${VAR}` in values: found, expanded, checked
* `schema`: the JSON Schema of a file
* `scrubbing`: JSON and text without known secrets and without what looks like a credential
* `secret_sources`: values from commands, the keyring and env files
* `self_reference`: a gateway must not start itself
* `trust`: whose file is obeyed: what it could do, what its owner agreed to
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import names_of

if TYPE_CHECKING:
    from ._config_names import *  # noqa: F403
else:
    __getattr__, __dir__ = names_of(__name__, "._config_names")
