"""How much longer than a quiet machine a busy one may take before a test gives up on it.

A deadline only ends a test that hangs. Where "at once" has to be told from "when something had run out", that lease,
wait or back-off is made far longer than any machine stalls. How fast things are is measured in benchmarks/.
"""

PATIENCE = 10
# Sooner than a wait that was asked to take `LONG_WAIT` seconds, on any machine.
LONG_WAIT = 120
AT_ONCE = 100
