"""The demonstration: the example scripts, stock and accelerated, side by side."""
