"""Our functions beside an installed torch_scatter: ``python -m tests.torch_scatter_library``.

Values, places and gradients are compared function by function, on torch's operations and on the
emulated kernels; then torch_sparse, whose reductions go through torch_scatter, with the library and
with ours in its place; then times on the CPU.
"""
