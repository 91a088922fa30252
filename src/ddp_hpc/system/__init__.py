"""Processes, files, commands, control groups and the terminal; imports only the standard library."""
