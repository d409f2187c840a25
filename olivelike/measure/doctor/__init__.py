"""Diagnosis of this machine: what olivelike can do on it, and what is broken; printing is the command line's work.

The probes are processes that import this package, too: names are imported at their first use.
"""

from typing import TYPE_CHECKING

from olivelike._lazy import names_from

if TYPE_CHECKING:
    from olivelike.measure.doctor.diagnosis import Diagnosis, Finding, Folder, ProviderCheck, TargetCheck, diagnose
    from olivelike.measure.doctor.starts import Start

__all__ = ["Diagnosis", "Finding", "Folder", "ProviderCheck", "Start", "TargetCheck", "diagnose"]
__getattr__ = names_from(__name__, __file__)
