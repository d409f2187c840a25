"""The shipped workflow files; `olivelike run NAME` finds them here."""
