"""The command line.

* `_main`    the group of commands, each loaded when it is used; exit codes
* `_common`  what the commands share: the configuration, the running gateway or the cache, printing
* `_look`    `status`, `tools`, `search`, `describe`: start nothing
* `_act`     `call`, `reconnect`
* `_config`  `config`
* `_serve`   `serve`
* `demo`     `demo`
* `_shapes`  the types of what they print with `--json`

stdout carries only the answer; all messages about it go to stderr. Exit codes: 0 done, 1 the call failed, 2 bad usage
or configuration. Neither the SDK nor an event loop is imported before a command needs it.
"""

from ._main import main

__all__ = ["main"]
