// SPDX-License-Identifier: Apache-2.0
// Everything is in the core archive; a shared library still wants one object of its own.
