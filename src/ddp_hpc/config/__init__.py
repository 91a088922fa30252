"""The language of study, spec and cluster files: fields, types, grids, claims, and messages about mistakes."""
