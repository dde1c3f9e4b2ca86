"""Stable counting sort of edges by one endpoint: O(edges + groups)."""

# mypy: disable-error-code=no-untyped-def

from numba import njit


@njit(cache=True, nogil=True)
def count(keys, indptr):
    groups = indptr.shape[0] - 1
    for e in range(keys.shape[0]):
        key = keys[e]
        if key < 0 or key >= groups:
            return e
        indptr[key + 1] += 1
    for g in range(groups):
        indptr[g + 1] += indptr[g]
    return -1


@njit(cache=True, nogil=True)
def place(keys, values, cursor, out_values, out_order):
    for e in range(keys.shape[0]):
        key = keys[e]
        position = cursor[key]
        cursor[key] = position + 1
        out_values[position] = values[e]
        out_order[position] = e


@njit(cache=True, nogil=True)
def expand(indptr, rows):
    for row in range(indptr.shape[0] - 1):
        for position in range(indptr[row], indptr[row + 1]):
            rows[position] = row
