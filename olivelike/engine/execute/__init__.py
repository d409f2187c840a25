"""Executing a plan in child processes, under a worker count and a memory budget."""
