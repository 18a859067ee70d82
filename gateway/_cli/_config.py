"""`greenroom config`: the effective configuration, the source of each part, and the schema of a file."""

from __future__ import annotations

from pathlib import Path

import click

from ._common import config_option, read_config, show_json


@click.command("config")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of the configuration instead.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (always the case here).")
@config_option
def config_command(schema: bool, as_json: bool, config_path: Path | None) -> None:
    """Show the effective configuration with its sources. Secrets are redacted."""
    from ...protocol import config_parse

    del as_json  # a configuration is JSON; the flag is there because every command has it
    if schema:
        show_json(config_parse.config_schema())
        return
    show_json(config_parse.redacted(read_config(config_path, always=True, most=None)))
