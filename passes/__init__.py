"""The built-in passes, one module each; the registry finds them here."""

if __name__ != "olivelike.passes":
    raise ImportError(
        f"this folder was imported as {__name__!r}: a second copy of every pass would exist; "
        "import olivelike.passes (after `pip install --editable .`)"
    )
