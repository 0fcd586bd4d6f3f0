// SPDX-License-Identifier: Apache-2.0
// The symbols that NCCL looks up.
#include "plugin/nccl/module/coll_entry.h"
#include "plugin/nccl/module/net_entry.h"
#include "plugin/nccl/module/tuner_entry.h"

using namespace prunex::nccl;  // NOLINT

// NOLINTBEGIN(readability-identifier-naming): the names are NCCL's.
#define PRUNEX_EXPORT(Type, name, value)                             \
  extern "C" __attribute__((visibility("default"))) const Type name; \
  constinit const Type name = module_side::value
#define PRUNEX_NET(V)                                                  \
  PRUNEX_EXPORT(abi::Net<V>, ncclNetPlugin_v##V, make_net_table<V>()); \
  PRUNEX_EXPORT(abi::CollNet<V>, ncclCollNetPlugin_v##V, make_coll_table<V>())
#define PRUNEX_TUNER(V) \
  PRUNEX_EXPORT(abi::TunerV##V, ncclTunerPlugin_v##V, make_tuner_table<abi::TunerV##V>())

PRUNEX_NET(6);
PRUNEX_NET(7);
PRUNEX_NET(8);
PRUNEX_NET(9);
PRUNEX_NET(10);
PRUNEX_NET(11);
PRUNEX_NET(12);

PRUNEX_TUNER(2);
PRUNEX_TUNER(3);
PRUNEX_TUNER(4);
PRUNEX_TUNER(5);
PRUNEX_TUNER(6);
// NOLINTEND(readability-identifier-naming)
