# make demo    train stock and accelerated side by side, print the table, save out/demo.png
# make test    the tests                      make lint    ruff and mypy
# make bench   the attention benchmark        make clean   remove what these made
# make test-scatter   build torch_scatter and torch_sparse (ten minutes and more), compare with ours
#
# Each sets up what it needs in .venv, once, from the versions in constraints.txt.
# `make ... PY=python3` uses that interpreter's environment as it is and installs nothing.

VENV := .venv
# The extras of pyproject.toml to install; cuda12 instead of cuda13 for a CUDA 12 driver.
EXTRAS := dgl,pyg,cuda13,dev
# Further arguments: make test ARGS="-k graph", make demo ARGS="--cora-epochs 20".
ARGS :=

ifdef PY
PYTHON := $(PY)
READY :=
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
else
PYTHON := $(VENV)/bin/python
READY := $(VENV)/ready
endif

.PHONY: demo test test-scatter lint bench clean

demo: $(READY)
	$(PYTHON) -m gnn_backend demo $(ARGS)

test: $(READY)
	@command -v g++ >/dev/null || { echo "g++ is missing: the tests compile the kernels for the host with it (Debian: apt install g++)" >&2; exit 1; }
	@workers=$$($(PYTHON) -c 'import xdist; print("-n auto --dist worksteal")' 2>/dev/null || true); \
	echo "pytest $$workers $(ARGS)"; $(PYTHON) -m pytest -q $$workers $(ARGS)

# The libraries are built from their source packages, without CUDA, into a folder of their own.
SCATTER := out/torch_scatter
SCATTER_JSON := out/torch-scatter.json

$(SCATTER)/ready: $(READY)
	@mkdir -p $(SCATTER)
	FORCE_ONLY_CPU=1 $(PYTHON) -m pip install --quiet --no-deps --no-build-isolation \
	  --no-binary torch_scatter,torch_sparse --upgrade --target $(SCATTER) \
	  torch_scatter==2.1.2 torch_sparse==0.6.18
	@touch $@

test-scatter: $(SCATTER)/ready
	PYTHONPATH=$(CURDIR):$(CURDIR)/$(SCATTER):$(PYTHONPATH) \
	  $(PYTHON) -m tests.torch_scatter_library --json $(SCATTER_JSON) $(ARGS)

lint: $(READY)
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

bench: $(READY)
	@mkdir -p out
	$(PYTHON) -m gnn_backend bench attention --json out/bench.json $(ARGS)

clean:
	rm -rf $(VENV) out build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# An interpreter named first on PATH may not run (a version manager's shim) or may lack
# venv (Debian ships it apart), so every candidate is tried.
$(VENV)/ready: pyproject.toml constraints.txt
	@rm -f $@
	@[ -x $(VENV)/bin/python ] && $(VENV)/bin/python -m pip --version >/dev/null 2>&1 || { \
	  found=; \
	  for name in python3.11 python3.12 python3; do \
	    IFS=:; for folder in $$PATH; do \
	      [ -z "$$found" ] && [ -x "$$folder/$$name" ] && "$$folder/$$name" -c \
	        'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] not in [(3, 11), (3, 12)])' \
	        >/dev/null 2>&1 && found=$$folder/$$name; \
	    done; unset IFS; \
	  done; \
	  [ -n "$$found" ] || { echo "found no Python 3.11 or 3.12 with venv on PATH (Debian: apt install python3 python3-venv); or name an environment: make $(MAKECMDGOALS) PY=python3" >&2; exit 1; }; \
	  echo "$$found -m venv $(VENV)"; "$$found" -m venv --clear $(VENV); }
	$(VENV)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@touch $@
