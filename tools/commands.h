// SPDX-License-Identifier: Apache-2.0
// The commands of `prunex`. argv[0] is the command's own name. Exit codes: 0 all is well, 1 it
// failed, 2 the arguments make no sense; stdout holds the document or table and nothing else.
#pragma once

namespace prunex::tools {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

int info_command(int argc, char** argv);
int topo_command(int argc, char** argv);
int run_command(int argc, char** argv);
int bench_command(int argc, char** argv);
int bench_allreduce_command(int argc, char** argv);
int bench_p2p_command(int argc, char** argv);
int bench_pack_command(int argc, char** argv);

}  // namespace prunex::tools
