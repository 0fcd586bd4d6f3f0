/* SPDX-License-Identifier: Apache-2.0 */
/* Data-parallel training from C: a perceptron, masks agreed by all ranks, one call per step.
 *
 *   cc -std=c99 -Iinclude docs/examples/train.c -o train -Lbuild/plugin -lprunex -lm
 *   export LD_LIBRARY_PATH=$PWD/build/plugin
 *   build/tools/prunex run -n 4 --nodes 2 -- ./train
 */
#include <math.h>
#include <prunex/prunex.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum {
  kInputs = 32,
  kHidden = 256,
  kKeep = 64,
  kBatch = 32,
  kSteps = 150,
  kPrune = 60,
  kWeights1 = kHidden * kInputs, /* w1[hidden][input], then w2[hidden] */
  kCount = kWeights1 + kHidden
};

static float param[kCount], grad[kCount];
static uint8_t keep[kHidden];

#define CHECK(call)                                            \
  do {                                                         \
    if ((call) != PRUNEX_SUCCESS) {                            \
      fprintf(stderr, "%s: %s\n", #call, prunex_last_error()); \
      return 1;                                                \
    }                                                          \
  } while (0)

/* Uniform in -1..1. */
static float next_random(uint32_t* state) {
  *state = *state * 1664525u + 1013904223u;
  return (float)(*state >> 8) / 8388608.0f - 1.0f;
}

/* One minibatch of y = |sum of the inputs|: the mean squared error, gradients in grad. */
static float step(uint32_t* state) {
  float loss = 0, x[kInputs], hidden[kHidden];
  memset(grad, 0, sizeof grad);
  for (int b = 0; b < kBatch; b++) {
    float wanted = 0, out = 0;
    for (int i = 0; i < kInputs; i++) wanted += x[i] = next_random(state);
    wanted = fabsf(wanted);
    for (int h = 0; h < kHidden; h++) {
      float sum = 0;
      for (int i = 0; i < kInputs; i++) sum += param[h * kInputs + i] * x[i];
      hidden[h] = sum > 0 ? sum : 0;
      out += param[kWeights1 + h] * hidden[h];
    }
    const float back = 2 * (out - wanted) / kBatch;
    loss += (out - wanted) * (out - wanted) / kBatch;
    for (int h = 0; h < kHidden; h++) {
      grad[kWeights1 + h] += back * hidden[h];
      if (hidden[h] <= 0) continue;
      for (int i = 0; i < kInputs; i++) {
        grad[h * kInputs + i] += back * param[kWeights1 + h] * x[i];
      }
    }
  }
  return loss;
}

/* A hidden unit is a row of w1 and an element of w2. PROJECT: the result is 0 in dropped places. */
static prunex_mask_desc_t describe(const char* name) {
  prunex_mask_desc_t desc;
  memset(&desc, 0, sizeof desc);
  desc.struct_size = sizeof desc;
  desc.kind = PRUNEX_MASK_DIMS;
  desc.contract = PRUNEX_PROJECT;
  desc.name = name;
  desc.declared_kept = -1;
  desc.keep[0] = keep;
  desc.keep_len[0] = kHidden;
  return desc;
}

/* Agrees on the units to keep, tells both masks, and zeroes the others' weights. */
static int prune(prunex_comm_t comm, prunex_mask_t mask1, prunex_mask_t mask2) {
  float scores[kHidden];
  prunex_agree_t agree = PRUNEX_AGREE_INIT;
  prunex_mask_desc_t desc;
  agree.keep = kKeep;
  for (int h = 0; h < kHidden; h++) {
    scores[h] = 0;
    for (int i = 0; i < kInputs; i++) scores[h] += param[h * kInputs + i] * param[h * kInputs + i];
    scores[h] *= param[kWeights1 + h] * param[kWeights1 + h];
  }
  CHECK(prunex_agree_mask(comm, scores, kHidden, &agree, keep));
  desc = describe("w1");
  CHECK(prunex_update_mask(mask1, &desc));
  desc = describe("w2");
  CHECK(prunex_update_mask(mask2, &desc));
  for (int h = 0; h < kHidden; h++) {
    if (keep[h]) continue;
    memset(&param[h * kInputs], 0, kInputs * sizeof(float));
    param[kWeights1 + h] = 0;
  }
  return 0;
}

int main(void) {
  const int64_t sizes1[] = {kHidden, kInputs}, sizes2[] = {kHidden};
  const prunex_tensor_t tensor1 = {sizeof tensor1, PRUNEX_FLOAT32, 2, sizes1, NULL};
  const prunex_tensor_t tensor2 = {sizeof tensor2, PRUNEX_FLOAT32, 1, sizes2, NULL};
  prunex_comm_config_t config = PRUNEX_COMM_CONFIG_INIT; /* rank, size, root: the environment */
  prunex_comm_info_t info;
  prunex_stats_t stats;
  prunex_mask_desc_t desc;
  prunex_mask_t mask1, mask2;
  prunex_layout_t layout;
  prunex_comm_t comm;
  uint64_t dense = 0, before = 0;
  uint32_t weights = 1, data;
  float loss = 0, first = 0;

  config.timeout_s = 60;
  CHECK(prunex_comm_create(&config, &comm));
  info.struct_size = sizeof info;
  CHECK(prunex_comm_info(comm, &info));
  data = 1000u + (uint32_t)info.rank;
  for (int i = 0; i < kCount; i++)
    param[i] = 0.1f * next_random(&weights); /* the same everywhere */

  memset(keep, 1, sizeof keep);
  desc = describe("w1");
  CHECK(prunex_register_mask(NULL, &tensor1, &desc, &mask1));
  desc = describe("w2");
  CHECK(prunex_register_mask(NULL, &tensor2, &desc, &mask2));
  const prunex_segment_t segments[] = {{0, kWeights1, mask1}, {kWeights1, kHidden, mask2}};
  CHECK(prunex_layout_create(segments, 2, kCount, &layout));

  stats.struct_size = sizeof stats;
  for (int s = 0; s < kSteps; s++) {
    if (s == kPrune) {
      CHECK(prunex_stats(comm, &stats));
      dense = stats.bytes_wire_sent / kPrune;
      if (prune(comm, mask1, mask2)) return 1;
    }
    loss = step(&data);
    if (s == 0) first = loss;
    CHECK(prunex_stats(comm, &stats));
    before = stats.bytes_wire_sent;
    CHECK(prunex_all_reduce(comm, grad, grad, kCount, PRUNEX_FLOAT32, PRUNEX_AVG, layout, NULL));
    for (int i = 0; i < kCount; i++) param[i] -= 0.01f * grad[i];
  }
  CHECK(prunex_stats(comm, &stats));
  if (info.rank == 0) {
    printf("loss %.3f -> %.3f, kept %d of %d hidden units\n", (double)first, (double)loss, kKeep,
           kHidden);
    if (dense) {
      printf("bytes between nodes: %.3f of those before pruning\n",
             (double)(stats.bytes_wire_sent - before) / (double)dense);
    }
  }
  CHECK(prunex_layout_destroy(layout));
  CHECK(prunex_unregister_mask(mask1));
  CHECK(prunex_unregister_mask(mask2));
  CHECK(prunex_comm_destroy(comm));
  return 0;
}
