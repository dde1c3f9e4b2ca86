"""Relational layers as programs."""
