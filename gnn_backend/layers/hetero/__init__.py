"""Layers of one kind over many relations, computed together."""
