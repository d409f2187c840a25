"""Signatures of folders, by OpenSSF Model Signing."""
