# SPDX-License-Identifier: Apache-2.0
"""PruneX for PyTorch."""
