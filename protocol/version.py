"""The version, in the one place that is cheap to import."""

VERSION = "0.1.0"
