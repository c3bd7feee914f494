"""Targets: where models run. What each has, whether it is awake, how many jobs it takes, what goes next."""
