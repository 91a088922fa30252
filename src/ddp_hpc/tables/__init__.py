"""Tables: one table, one file."""
