// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/admm_spans.h"

namespace prunex::host {

constinit const AdmmTable kAvx2AdmmTable = make_admm_table();

}  // namespace prunex::host
