# SPDX-License-Identifier: Apache-2.0
"""Tests import prunex from the source tree."""
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
torch.set_num_threads(1)
