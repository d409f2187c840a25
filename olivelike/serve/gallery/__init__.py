"""Keeping of pictures, uploads and jobs, as files and SQLite below one folder."""
