# SPDX-License-Identifier: Apache-2.0
"""torch.distributed (gloo) all_reduce of BYTES of fp32, in place: the twin of compare_mpi.cc."""
import sys
import time

import torch
import torch.distributed as dist

nbytes, iters, warmup = (int(a) for a in sys.argv[1:4])
dist.init_process_group("gloo")
torch.set_num_threads(1)
data = torch.zeros(nbytes // 4)
times = []
for i in range(warmup + iters):
    data.fill_(1.0)
    dist.barrier()
    begin = time.perf_counter()
    dist.all_reduce(data)
    if i >= warmup:
        times.append((time.perf_counter() - begin) * 1e3)
    assert data[len(data) // 2] == dist.get_world_size()
times.sort()
if dist.get_rank() == 0:
    print(f"{times[len(times) // 2]:.3f} {times[0]:.3f}", flush=True)
dist.destroy_process_group()
