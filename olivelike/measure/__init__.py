"""How good an optimised pipeline is, how fast, and why: nothing here changes an artifact."""
