"""The kernels touch no memory that is not theirs: operator tests under AddressSanitizer, UBSan."""

from __future__ import annotations

import pytest

from tests.emulator import sanitized

PYTEST = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist")

#: What decides which memory the attention kernels touch: rows, chunks and offsets, outputs that
#: are not wanted, edges that are skipped. Of the table of shapes, in 4 and in 2 bytes: one value,
#: one 16-byte access, masked tails, several blocks of heads, heads side by side.
ATTENTION = (
    *("test_graphs", "chunk", "no_edges", "offsets", "what_is_needed", "masked"),
    *("h2-d1-", "h3-d1-", "h2-d8-", "h8-d8-", "h1-d33", "h3-d33", "h2-d512", "h3-d512"),
    "test_slopes and (2-64-0.2 or 3-7--0.3)",
)


@pytest.mark.slow
def test_operators_under_sanitizers(tmp_path_factory: pytest.TempPathFactory) -> None:
    if not sanitized.sanitizer_libraries():
        pytest.skip("g++ has no libasan.so and libubsan.so")
    files = ("graphs", "values", "autograd", "shapes")
    arguments = [*PYTEST]
    arguments += [f"tests/ops/test_attention_{name}.py" for name in files]
    # The last runs on the emulator without saying so in its name.
    arguments += ["-k", f"emulator and ({' or '.join(ATTENTION)}) or more_head_blocks"]
    cache = str(tmp_path_factory.mktemp("sanitized-cache"))
    result = sanitized.run_python(arguments, extra={"GNN_BACKEND_CACHE_DIR": cache}, timeout=280)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    assert " passed" in result.stdout


@pytest.mark.slow
@pytest.mark.thorough
def test_edge_operands_under_sanitizers(tmp_path_factory: pytest.TempPathFactory) -> None:
    if not sanitized.sanitizer_libraries():
        pytest.skip("g++ has no libasan.so and libubsan.so")
    tests = "(64_bits and dot) or (shapes and 2-33-16)"
    arguments = [*PYTEST, "tests/ops/test_attention_device.py", "-k", tests]
    cache = str(tmp_path_factory.mktemp("sanitized-cache"))
    result = sanitized.run_python(arguments, extra={"GNN_BACKEND_CACHE_DIR": cache}, timeout=280)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    assert " passed" in result.stdout


@pytest.mark.slow
@pytest.mark.thorough
def test_sparse_operators_under_sanitizers(tmp_path_factory: pytest.TempPathFactory) -> None:
    if not sanitized.sanitizer_libraries():
        pytest.skip("g++ has no libasan.so and libubsan.so")
    files = [
        f"tests/ops/test_{name}.py" for name in ("spmm", "edgewise", "edge_softmax", "segment")
    ]
    # Whole and split rows, tails of rows and batches, 64-bit edge ids, rows without edges.
    tests = "(chunks and (16 or 40)) or 64_bit or no_rows or (test_dot_shapes and dtype2)"
    cache = str(tmp_path_factory.mktemp("sanitized-cache"))
    result = sanitized.run_python(
        [*PYTEST, *files, "-k", tests], extra={"GNN_BACKEND_CACHE_DIR": cache}, timeout=280
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    assert " passed" in result.stdout


@pytest.mark.slow
@pytest.mark.thorough
def test_aggregation_under_sanitizers(tmp_path_factory: pytest.TempPathFactory) -> None:
    if not sanitized.sanitizer_libraries():
        pytest.skip("g++ has no libasan.so and libubsan.so")
    # Split and whole rows, single values and vectors, masked tails, 64-bit places and edge ids.
    tests = "64_bit or extremes_of_zero or (table and (float64 or 33 or 136))"
    cache = str(tmp_path_factory.mktemp("sanitized-cache"))
    result = sanitized.run_python(
        [*PYTEST, "tests/ops/test_aggregation_device.py", "-k", tests],
        extra={"GNN_BACKEND_CACHE_DIR": cache},
        timeout=280,
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    assert " passed" in result.stdout


@pytest.mark.slow
@pytest.mark.thorough
def test_attention_over_tiles_under_sanitizers(tmp_path_factory: pytest.TempPathFactory) -> None:
    if not sanitized.sanitizer_libraries():
        pytest.skip("g++ has no libasan.so and libubsan.so")
    # Split and whole windows, rows that end within a window, an infinity; 16 and 32 bits.
    tests = "(bfloat16 or float32) and ((split and 32-) or (graphs and sparse) or spoil)"
    cache = str(tmp_path_factory.mktemp("sanitized-cache"))
    result = sanitized.run_python(
        [*PYTEST, "tests/runtime/test_block_sparse.py", "-k", tests],
        extra={"GNN_BACKEND_CACHE_DIR": cache},
        timeout=280,
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    assert " passed" in result.stdout


@pytest.mark.slow
@pytest.mark.thorough
def test_typed_linears_under_sanitizers(tmp_path_factory: pytest.TempPathFactory) -> None:
    if not sanitized.sanitizer_libraries():
        pytest.skip("g++ has no libasan.so and libubsan.so")
    # Aligned and odd sizes in 16 bits, tiles and chunks that are not full; every index in 32.
    tests = "(test_kernels and f16 and not bf16) or every_index_of_the_kernels"
    cache = str(tmp_path_factory.mktemp("sanitized-cache"))
    result = sanitized.run_python(
        [*PYTEST, "tests/ops/test_typed_linear.py", "-k", tests],
        extra={"GNN_BACKEND_CACHE_DIR": cache},
        timeout=280,
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    assert " passed" in result.stdout
