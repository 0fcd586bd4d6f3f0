// SPDX-License-Identifier: Apache-2.0
// As plugin/base/pch/standard.hpp, of the tests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "plugin/base/pch/standard.hpp"
