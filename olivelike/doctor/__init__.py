"""What this machine can do for olivelike, and what is broken; printing is the command line's work."""

from olivelike.doctor.diagnosis import Diagnosis, Folder, TargetCheck, diagnose
from olivelike.doctor.installed import Finding
from olivelike.doctor.providers import ProviderCheck

__all__ = ["Diagnosis", "Finding", "Folder", "ProviderCheck", "TargetCheck", "diagnose"]
