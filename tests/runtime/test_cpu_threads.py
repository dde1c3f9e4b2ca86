"""Threads, forks and threading layers: same bits everywhere, and no process dies."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numba
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from gnn_backend.runtime import cpu, cpu_call, cpu_threads
from tests.runtime.cpu_cases import GATV2, SLOPE, gatv2_operands, run, skewed_graph

fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


@pytest.fixture(autouse=True)
def many_blocks_on_two_threads(monkeypatch):
    monkeypatch.setattr(cpu_call, "BLOCK_WORK", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


GRAPH = skewed_graph(edges=3000)
OPERANDS = gatv2_operands(GRAPH, 2, 16)


def results():
    return run(GRAPH, OPERANDS)


def same(left, right) -> bool:
    return all(torch.equal(left[name], right[name]) for name in right)


def in_child(check) -> int:
    """Exit status of a forked child: 0 if ``check()`` is true, negative if a signal killed it."""
    pid = os.fork()
    if pid == 0:
        status = 2
        try:
            status = 0 if check() else 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_tbb_is_found():
    assert cpu_threads.parallel_available()
    results()
    assert numba.threading_layer() == "tbb"


def test_numbas_own_thread_count_is_left_alone():
    results()
    numba.set_num_threads(1)
    try:
        results()
        assert numba.get_num_threads() == 1
        assert numba.get_parallel_chunksize() == 0
    finally:
        numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)


@pytest.mark.parametrize(("threads", "parallel"), [(1, False), (2, True)])
def test_torchs_thread_count_is_followed(monkeypatch, threads, parallel):
    torch.set_num_threads(threads)
    loops = []
    original = cpu_threads.cpu_module.run_blocks

    def spy(parallel):
        def loop(*args):
            loops.append((parallel, numba.get_num_threads() if parallel else 1))
            return original(parallel)(*args)

        return loop

    monkeypatch.setattr(cpu_threads.cpu_module, "run_blocks", spy)
    cpu.softmax_forward(GATV2, GRAPH, OPERANDS, SLOPE)
    assert loops[0] == (parallel, threads)


def test_concurrent_python_threads():
    expected = results()
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(results) for _ in range(24)]
        assert all(same(future.result(), expected) for future in futures)


@fork
def test_forked_child():
    expected = results()
    assert in_child(lambda: same(results(), expected)) == 0
    assert same(results(), expected)  # the parent's pool is alive as well


@fork
def test_fork_from_a_thread():
    expected = results()
    with ThreadPoolExecutor(1) as pool:
        status = pool.submit(in_child, lambda: same(results(), expected)).result()
    assert status == 0
    assert cpu_threads.parallel_available()


@fork
def test_fork_while_a_kernel_runs():
    expected = results()
    stop = threading.Event()

    def work():
        while not stop.is_set():
            results()

    worker = threading.Thread(target=work)
    worker.start()
    try:
        statuses = [in_child(lambda: same(results(), expected)) for _ in range(5)]
    finally:
        stop.set()
        worker.join()
    assert statuses == [0] * 5
    assert same(results(), expected)


class Attention(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        torch.set_num_threads(2)
        return results()["x_src"]


@fork
def test_data_loader_workers():
    expected = results()["x_src"]
    batches = list(DataLoader(Attention(), num_workers=2, multiprocessing_context="fork"))
    assert len(batches) == 4
    assert all(torch.equal(batch[0], expected) for batch in batches)


def _script(body: str, **environment: str) -> str:
    root = Path(__file__).parents[2]
    setup = (
        "import torch, threading, numba\n"
        "from gnn_backend.runtime import cpu, cpu_call, cpu_threads\n"
        "from tests.runtime.cpu_cases import *\n"
        "cpu_call.BLOCK_WORK = 1; torch.set_num_threads(2)\n"
        "graph = skewed_graph(edges=3000); operands = gatv2_operands(graph, 2, 16)\n"
        "def work():\n"
        "    for _ in range(5): run(graph, operands)\n"
        "def concurrently():\n"
        "    threads = [threading.Thread(target=work) for _ in range(4)]\n"
        "    [t.start() for t in threads]; [t.join() for t in threads]\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", setup + body],
        env=os.environ | {"PYTHONPATH": str(root)} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_without_tbb_kernels_run_on_the_calling_thread():
    body = (
        "cpu_threads._load_tbb = lambda: False\n"
        "concurrently()\n"
        "from numba.np.ufunc import parallel\n"
        "print(cpu_threads.parallel_available(), parallel._is_initialized)\n"
    )
    assert _script(body) == "False False"


@pytest.mark.parametrize("layer", ["workqueue", "omp"])
def test_another_threading_layer_in_use_is_not_touched(layer):
    body = (
        "numba.get_num_threads()\n"
        "concurrently()\n"
        "import os\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    work(); os._exit(0)\n"
        "status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n"
        "print(numba.threading_layer(), cpu_threads.parallel_available(), status)\n"
    )
    assert _script(body, NUMBA_THREADING_LAYER=layer) == f"{layer} False 0"
