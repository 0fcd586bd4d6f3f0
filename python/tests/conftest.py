# SPDX-License-Identifier: Apache-2.0
"""The package is found in this checkout unless another one is installed for the test."""

import os
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
if not os.environ.get("PRUNEX_TEST_INSTALLED"):
    sys.path.insert(0, str(_HERE.parent))
sys.path.insert(0, str(_HERE))
