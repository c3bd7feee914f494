"""Telling those who wait: the hub carries "something changed" within a process and between replicas."""
