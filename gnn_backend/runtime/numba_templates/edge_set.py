"""Looking up pairs of nodes among the edges of a graph, whose rows are in ascending order."""

# mypy: disable-error-code=no-untyped-def

from numba import njit


@njit(cache=True, nogil=True)
def has(indptr, indices, row, column):
    """Whether a row has a column, by bisection without branches that depend on it."""
    first, count = indptr[row], indptr[row + 1] - indptr[row]
    if count == 0:
        return False
    while count > 1:
        half = count >> 1
        first = first + half if indices[first + half] <= column else first
        count -= half
    return indices[first] == column


@njit(cache=True, nogil=True)
def ascends(indptr, indices):
    for row in range(indptr.shape[0] - 1):
        for k in range(indptr[row] + 1, indptr[row + 1]):
            if indices[k] < indices[k - 1]:
                return False
    return True


@njit(cache=True, nogil=True)
def count_pairs(indptr, indices, counts):
    """Edges between different nodes; ordered pairs of nodes with one in either direction."""
    edges, pairs = 0, 0
    for row in range(indptr.shape[0] - 1):
        for k in range(indptr[row], indptr[row + 1]):
            column = indices[k]
            if column == row:
                continue
            edges += 1
            if k > indptr[row] and indices[k - 1] == column:
                continue
            pairs += 1 if has(indptr, indices, column, row) else 2
    counts[0], counts[1] = edges, pairs


@njit(cache=True, nogil=True)
def keep_absent(numbers, indptr, indices, either, swapped, pairs):
    """Write the pairs of nodes, of those with the given numbers, that no edge joins.

    Pairs of different nodes are numbered row by row. ``either``: an edge in either direction
    joins them. ``swapped``: the edges are listed by the second of a pair. Stops when ``pairs``
    [2, P] is full, and returns how many were written.
    """
    others = indptr.shape[0] - 2
    written = 0
    if pairs.shape[1] == 0:
        return written
    for k in range(numbers.shape[0]):
        first = numbers[k] // others
        second = numbers[k] - first * others
        if second >= first:
            second += 1
        row, column = (second, first) if swapped else (first, second)
        if has(indptr, indices, row, column) or (either and has(indptr, indices, column, row)):
            continue
        pairs[0, written], pairs[1, written] = first, second
        written += 1
        if written == pairs.shape[1]:
            break
    return written
