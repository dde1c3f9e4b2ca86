"""Numba kernels as text: traversal templates, and the functors composed with them.

A template (``softmax.py``) is a working module for the functor that it imports; composing it
with another functor replaces that import by the other functor's text (see ``runtime.cpu_module``).
"""
