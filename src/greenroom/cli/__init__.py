"""The command line, a module for each command, or for a few that share options, loaded when it is used."""
