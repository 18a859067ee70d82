"""Variables of an environment that decide what a program runs: which code it loads, which other program it starts, or
through whom it talks. Whoever sets one of these runs code.

No list of them can be complete. So whoever trusts a project says yes to all variables in the `envFile` of its server,
whatever they are called (`trust`). These are those of the loaders, interpreters and tools that start MCP servers: an
`envFile` may not set them even with a yes, and `greenroom trust` shows their values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from ..protocol.lazy_patterns import lazy_pattern

# Ordinary settings must stay free: DATA_PATH, ENV, NODE_ENV, PIPEDRIVE_KEY, LD_SDK_KEY.
_DECIDES: Final = lazy_pattern(
    r"PATH|PATHEXT|HOME|USERPROFILE|APPDATA|LOCALAPPDATA|XDG_\w+|IFS|SHELL|COMSPEC|EDITOR|VISUAL|PAGER|BROWSER|SYSTEMROOT"
    r"|LD_(?:PRELOAD|LIBRARY_PATH|AUDIT|DEBUG\w*|PROFILE\w*|ORIGIN_PATH|ASSUME_KERNEL)|DYLD_\w+|GLIBC_TUNABLES"
    r"|GCONV_PATH|LOCPATH|NLSPATH|BASH_\w+|BASH_FUNC_.*|BASHOPTS|SHELLOPTS|ZDOTDIR|PROMPT_COMMAND|PS4|\w*_?PROXY|\w+_CA_BUNDLE"
    r"|SSL_CERT_(?:FILE|DIR)|SSLKEYLOGFILE|OPENSSL_(?:CONF|MODULES|ENGINES)|(?:SSH|SUDO|GIT)_ASKPASS"
    r"|PYTHON(?:PATH|HOME|STARTUP|BREAKPOINT|USERBASE|PLATLIBDIR|PYCACHEPREFIX|WARNINGS|INSPECT|EXECUTABLE|SAFEPATH)"
    r"|(?:UV|PIP|PIPX|POETRY|CONDA|VIRTUALENV|PYENV)_\w*(?:INDEX|CONFIG|FIND|PYTHON|HOME|DIR|ENV|REQUIRE|CONSTRAINT|BIN"
    r"|URL|PREFIX|TARGET|ROOT|HOST)\w*|VIRTUAL_ENV"
    r"|NODE_(?:PATH|OPTIONS|COMPILE_CACHE|EXTRA_CA_CERTS|TLS_REJECT_UNAUTHORIZED|REPL_\w+|V8_COVERAGE)|ELECTRON_RUN_AS_NODE"
    r"|(?:NPM|YARN|PNPM|BUN|DENO|COREPACK|NVM|VOLTA)_(?:CONFIG|HOME|DIR|INSTALL|OPTIONS|REGISTRY|NPM_REGISTRY|RC|CERT)\w*"
    r"|PERL5(?:LIB|OPT|DB)|PERLLIB|RUBY(?:OPT|LIB|SHELL)|GEM_(?:HOME|PATH)|BUNDLE_\w+|LUA_(?:INIT|C?PATH)\w*|PHPRC"
    r"|PHP_INI_SCAN_DIR|R_(?:PROFILE|ENVIRON|HOME|LIBS)\w*|PSMODULEPATH|CLASSPATH|JAVA_HOME"
    r"|(?:_JAVA|JAVA_TOOL|JDK_JAVA)_OPTIONS|(?:MAVEN|GRADLE|JAVA|SBT|KOTLIN)_OPTS|DOTNET_\w*(?:HOOKS|ROOT|DEPS)\w*"
    r"|(?:COR|CORECLR|DOTNET)_(?:ENABLE_PROFILING|PROFILER\w*)|GO(?:FLAGS|PROXY|ROOT|BIN|ENV|TOOLCHAIN)"
    r"|CARGO_\w*(?:HOME|RUSTC|TARGET|BUILD|REGISTR)\w*|RUSTC\w*|RUSTFLAGS|RUSTUP_\w+"
    r"|GIT_(?:SSH|EXEC|CONFIG|EDITOR|PAGER|PROXY|DIR|WORK|TEMPLATE|EXTERNAL|SEQUENCE|OBJECT|ALTERNATE|SSL|TRACE)\w*"
    r"|SVN_SSH|LESS(?:OPEN|CLOSE)|MAKEFLAGS|CLOUDSDK_PYTHON\w*|DOCKER_(?:HOST|CONFIG|CONTEXT|CERT_PATH)|KUBECONFIG|GREENROOM_\w+",
    re.IGNORECASE | re.DOTALL,
)


def loaders_among(names: Iterable[str]) -> list[str]:
    """Those of these variables that decide what a program runs."""
    return sorted(name for name in names if _DECIDES.fullmatch(name))
