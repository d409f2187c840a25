"""Formats of weight files, as tables: what a file holds and where, without reading a weight."""
