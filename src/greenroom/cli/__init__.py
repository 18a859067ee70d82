"""The command line, one module for each command, each loaded when it is used."""
