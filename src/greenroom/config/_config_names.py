"""The names of `greenroom.config`: the model of a configuration. Imported when one of them is first used."""

# One name twice makes it public for type checkers.
# ruff: noqa: I001

from .model import (
    Approve as Approve,
    Config as Config,
    Era as Era,
    HttpTransport as HttpTransport,
    Isolation as Isolation,
    Lifecycle as Lifecycle,
    Pinning as Pinning,
    PrefixMode as PrefixMode,
    Profile as Profile,
    RestartPolicy as RestartPolicy,
    Scrub as Scrub,
    ServerDefinition as ServerDefinition,
    Settings as Settings,
)
