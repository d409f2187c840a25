"""Telling what a weight file is, from its header alone."""
