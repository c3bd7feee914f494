"""How much longer than a quiet machine a busy one may take before a test gives up on it.

A limit in seconds tells "at once" from "only after a lease, a back-off or a poll has run out". It is no measurement:
how fast things are is measured in benchmarks/.
"""

PATIENCE = 4
