"""Clients: what each insists on in a pipeline folder, and a check of any folder against that."""

from olivelike.measure.clients.check import CheckResult, Verdict, check_client
from olivelike.measure.clients.requirements import CLIENTS

__all__ = ["CLIENTS", "CheckResult", "Verdict", "check_client"]
