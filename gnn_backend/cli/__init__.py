"""The command line: one file a command, assembled in ``app``.

Commands import what they need when they run, so that ``--help`` needs neither torch nor a host.
With ``--json`` a command writes one JSON document to standard output and nothing else there.
"""
