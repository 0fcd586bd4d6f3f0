// SPDX-License-Identifier: Apache-2.0
// What tests tell the stand-in for NCCL, besides NCCL's own functions. Of the calling thread: a
// rank is a thread.
#pragma once
#include <string>
#include <vector>

extern "C" {
// The `nth` (0: the next) call of `function` ("AllReduce", "CommSplit", ...) returns `code`.
void standin_fail(const char* function, int nth, int code);
// The next collective reports `code` as an asynchronous error when it runs, and takes no part.
void standin_fail_async(int code);
// Where calls are written down: "AllReduce 12 f32"; null: nowhere.
void standin_log(std::vector<std::string>* log);
// Communicators of the process that were neither destroyed nor aborted.
int standin_live();
}
