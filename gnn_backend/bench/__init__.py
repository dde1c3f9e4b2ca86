"""Measurements behind the command line: times, memory, the yardstick, stock layers and rivals."""
