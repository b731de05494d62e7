"""The judge: is a candidate's ModelNew right, and is it really faster? Importing loads no torch."""

from fusewright.judge.findings import CHECKS, Finding, Row, Verdict, write_report
from fusewright.judge.judging import Limits, judge, replay

__all__ = ["CHECKS", "Finding", "Limits", "Row", "Verdict", "judge", "replay", "write_report"]
