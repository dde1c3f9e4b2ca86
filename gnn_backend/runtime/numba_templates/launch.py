"""Run a block function over all blocks, on several threads or on the calling one."""

# mypy: disable-error-code=no-untyped-def

from numba import njit, prange

from gnn_backend.runtime.cpu_memory import call_block


@njit(parallel=True, cache=True, nogil=True)
def run_parallel(function, blocks, address):
    for block in prange(blocks):
        call_block(function, block, address)


@njit(cache=True, nogil=True)
def run_serial(function, blocks, address):
    for block in range(blocks):
        call_block(function, block, address)
