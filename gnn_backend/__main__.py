"""``python -m gnn_backend``: the command line."""

from gnn_backend.cli.app import main

if __name__ == "__main__":
    main()
