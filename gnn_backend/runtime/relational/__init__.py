"""Traversals of relational programs on the targets: generated modules, launches, merges."""
