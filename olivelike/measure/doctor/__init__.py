"""What this machine can do for olivelike, and what is broken; printing is the command line's work."""

from olivelike.measure.doctor.diagnosis import Diagnosis, Finding, Folder, ProviderCheck, TargetCheck, diagnose

__all__ = ["Diagnosis", "Finding", "Folder", "ProviderCheck", "TargetCheck", "diagnose"]
