"""What moves by itself: the worker, its leases, the sweeper, the promoter; each a loop of one shape."""
