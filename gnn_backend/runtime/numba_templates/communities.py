"""Size-bounded label propagation, node by node, and the graph of the communities found."""

# mypy: disable-error-code=no-untyped-def

from numba import njit


@njit(cache=True, nogil=True)
def join(first_ptr, first, second_ptr, second, columns):
    """The rows of two CSRs one behind the other, row by row."""
    at = 0
    for v in range(first_ptr.shape[0] - 1):
        for k in range(first_ptr[v], first_ptr[v + 1]):
            columns[at] = first[k]
            at += 1
        for k in range(second_ptr[v], second_ptr[v + 1]):
            columns[at] = second[k]
            at += 1


@njit(cache=True, nogil=True)
def propagate(
    indptr, columns, weights, visited, rank, labels, sizes, held, bound, weight_of, touched
):
    """One pass: each node takes the label that most of its edges lead to and that it fits in.

    ``weight_of`` [N] is zero on entry and on return; ``touched`` [N] is scratch.
    """
    plain = weights.shape[0] == 0
    for v in visited:
        own, size = labels[v], sizes[v]
        seen = 0
        for k in range(indptr[v], indptr[v + 1]):
            label = labels[columns[k]]
            if weight_of[label] == 0:
                touched[seen] = label
                seen += 1
            weight_of[label] += 1 if plain else weights[k]
        best, most = own, weight_of[own]
        for i in range(seen):
            label = touched[i]
            weight = weight_of[label]
            weight_of[label] = 0
            if label == own or held[label] + size > bound:
                continue
            if weight > most or (weight == most and best != own and rank[label] < rank[best]):
                best, most = label, weight
        if best != own:
            held[own] -= size
            held[best] += size
            labels[v] = best


@njit(cache=True, nogil=True)
def contract(
    indptr,
    columns,
    weights,
    ptr,
    members,
    labels,
    out_indptr,
    out_columns,
    out_weights,
    weight_of,
    touched,
):
    """Edges between communities, with the sums of their weights; returns their number."""
    plain = weights.shape[0] == 0
    at = 0
    for c in range(ptr.shape[0] - 1):
        seen = 0
        for m in range(ptr[c], ptr[c + 1]):
            v = members[m]
            for k in range(indptr[v], indptr[v + 1]):
                label = labels[columns[k]]
                if label != c:
                    if weight_of[label] == 0:
                        touched[seen] = label
                        seen += 1
                    weight_of[label] += 1 if plain else weights[k]
        for i in range(seen):
            label = touched[i]
            out_columns[at] = label
            out_weights[at] = weight_of[label]
            weight_of[label] = 0
            at += 1
        out_indptr[c + 1] = at
    return at
