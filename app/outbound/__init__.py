"""Calls to the outside: to whom callers name, behind one guard, and to targets, which operators set up."""
