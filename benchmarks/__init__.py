"""Speed, measured against others in the same run. `python -m benchmarks --help`; docs/benchmarks.md explains.

This file must import with the standard library alone: the peers' scripts run inside venvs of their own.
"""
