// SPDX-License-Identifier: Apache-2.0
// The program that tests.hpp is compiled for: GoogleTest's main() and no test.
