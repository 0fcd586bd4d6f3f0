# SPDX-License-Identifier: Apache-2.0
"""Structured masks agreed on all nodes, and an all-reduce that sends only what they keep."""
from prunex.masks import MaskSpec

__all__ = ["MaskSpec"]
