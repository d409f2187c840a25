"""Routes, a module for each language that clients speak."""
