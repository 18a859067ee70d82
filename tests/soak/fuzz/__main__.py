"""`python -m tests.soak.fuzz TARGET SECONDS FOLDER`: search one target, led by the branches it takes.

What makes it fail is printed and kept in FOLDER; the exit code is then not 0. An input may take five seconds, and the
whole process two gigabytes.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from pathlib import Path
from typing import Any

import greenroom

# What is searched; to instrument the whole room would take as long as a search.
READERS = [
    *("greenroom.protocol", "greenroom.config.file_formats", "greenroom.gateway.doors.control_protocol"),
    *(
        "greenroom.catalogue.list_pages",
        "greenroom.actors.transports.http_client",
        "greenroom.catalogue.store",
    ),
    *(
        "greenroom.actors.transports.event_parser",
        "greenroom.actors.transports.http_bounds",
        "greenroom.safety.pins_file",
    ),
    *(
        "greenroom.catalogue.search_file",
        "greenroom.catalogue.vector_file",
        "greenroom.catalogue.encoder",
        "greenroom.config.secret_sources",
        "greenroom.config.file_formats",
        "greenroom.config.trust",
    ),
    *("greenroom.gateway.doors.http_auth", "greenroom.gateway.doors.issuer_keys"),
    *("greenroom.gateway.exposures.output_files", "greenroom.gateway.exposures.tool_definition"),
    *("greenroom.actors.transports.lines", "greenroom.actors.transports.stderr_ring", "greenroom.openapi"),
]


def main(name: str, seconds: str, folder: str) -> None:
    atheris: Any = importlib.import_module("atheris")  # it is there only where somebody searches
    with atheris.instrument_imports(["greenroom"], exclude=_others(), enable_loader_override=False):
        from ._targets import TARGETS
    from ._seeds import SEEDS

    corpus = Path(folder, "corpus")
    corpus.mkdir(parents=True)
    for number, seed in enumerate(SEEDS[name]):
        (corpus / f"seed-{number}").write_bytes(seed)
    bounds = [f"-max_total_time={seconds}", "-timeout=5", "-rss_limit_mb=2048", "-max_len=8192"]
    words = Path(folder, "words.dict")  # what a search by bytes would have to guess
    words.write_text("".join(f"{word}\n" for word in sorted(_words(SEEDS[name]))))
    bounds += [f"-dict={words}"] if words.stat().st_size else []
    options = [*bounds, f"-artifact_prefix={folder}/", "-verbosity=0", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], TARGETS[name])
    atheris.Fuzz()


def _others() -> list[str]:
    """Every module that is not searched: the engine knows packages only by their first name."""
    root = Path(greenroom.__file__).parent
    places = [Path(folder, file) for folder, _, files in os.walk(root, followlinks=True) for file in files]
    names = {".".join(("greenroom", *place.relative_to(root).with_suffix("").parts)) for place in places}
    return [name for name in names if not any(f"{name}.".startswith(f"{reader}.") for reader in READERS)]


def _words(seeds: tuple[bytes, ...]) -> set[str]:
    """The keys of the seeds, as libFuzzer writes them."""
    found = {word for seed in seeds for word in re.findall(rb'"[A-Za-z/$_]{2,30}":?', seed)}
    return {'"' + word.decode().replace('"', '\\"') + '"' for word in found}


if __name__ == "__main__":
    main(*sys.argv[1:])
