// SPDX-License-Identifier: Apache-2.0
// As much of a libnccl as finding its own networks needs: a release, and a table that nothing hands
// out. BUILTIN_RELEASE is the build's.
struct Table {
  const char* name;
  void* calls[32];
};

extern "C" {
extern Table ncclNetIb, ncclNetIbMock;
Table ncclNetIb = {"IB", {}};  // the build hides it
Table ncclNetIbMock = {"another", {}};

[[gnu::visibility("default")]] int ncclGetVersion(int* version);
int ncclGetVersion(int* version) {
  *version = BUILTIN_RELEASE;
  return 0;
}
}
