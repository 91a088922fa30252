"""A result set as a pack that a stranger can check: `publish` makes it, `verify` checks it.

A pack is a function of the records and the study. First the evidence is copied (`evidence`), without what is private
(`private`); then all else is made from what lies in the pack (`derived`): tables, figures, page, and how it describes
itself (`readme`, `crate`, `datapackage`, `citation`). So whoever has a pack can make all of that again.
"""
