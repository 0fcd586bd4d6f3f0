// SPDX-License-Identifier: Apache-2.0
// The places of all slots of the Net and CollNet tables, as NCCL has them.
#pragma once
#include "plugin/nccl/abi/coll_net.h"

namespace prunex::nccl::abi {

inline constexpr size_t kSlot = sizeof(void (*)());

template <class T>
constexpr bool kNetSlots = offsetof(T, name) == 0 &&
                           offsetof(T, init) == 1 * kSlot&& offsetof(T, devices) ==
                               2 * kSlot&& offsetof(T, get_properties) ==
                               3 * kSlot&& offsetof(T, listen) ==
                               4 * kSlot&& offsetof(T, connect) ==
                               5 * kSlot&& offsetof(T, accept) == 6 * kSlot&& offsetof(T, reg_mr) ==
                               7 * kSlot&& offsetof(T, reg_mr_dmabuf) ==
                               8 * kSlot&& offsetof(T, dereg_mr) ==
                               9 * kSlot&& offsetof(T, isend) == 10 * kSlot&& offsetof(T, irecv) ==
                               11 * kSlot&& offsetof(T, iflush) == 12 * kSlot&& offsetof(T, test) ==
                               13 * kSlot&& offsetof(T, close_send) ==
                               14 * kSlot&& offsetof(T, close_recv) ==
                               15 * kSlot&& offsetof(T, close_listen) == 16 * kSlot;

template <class T>
constexpr bool kOffloadSlots = kNetSlots<T>&& offsetof(T, get_device_mr) ==
                               17 * kSlot&& offsetof(T, irecv_consumed) == 18 * kSlot;

template <class T>
constexpr bool kVirtualSlots = kOffloadSlots<T>&& offsetof(T, make_vdevice) == 19 * kSlot;

template <class T>
constexpr bool kContextSlots = kVirtualSlots<T>&& offsetof(T, finalize) ==
                               20 * kSlot&& offsetof(T, set_net_attr) == 21 * kSlot;

static_assert(kNetSlots<NetV6> && sizeof(NetV6) == 136);
static_assert(kOffloadSlots<NetV7> && sizeof(NetV7) == 152);
static_assert(kOffloadSlots<NetV8> && sizeof(NetV8) == 152);
static_assert(kVirtualSlots<NetV9> && sizeof(NetV9) == 160);
static_assert(kVirtualSlots<NetV10> && sizeof(NetV10) == 160);
static_assert(kContextSlots<NetV11> && sizeof(NetV11) == 176);
static_assert(kContextSlots<NetV12> && sizeof(NetV12) == 176);

// What all CollNet versions begin with, and what they end with.
template <class T>
constexpr bool kCollSlots = offsetof(T, name) == 0 &&
                            offsetof(T, init) == 1 * kSlot&& offsetof(T, devices) ==
                                2 * kSlot&& offsetof(T, get_properties) ==
                                3 * kSlot&& offsetof(T, listen) ==
                                4 * kSlot&& offsetof(T, connect) ==
                                5 * kSlot&& offsetof(T, reduce_support) ==
                                6 * kSlot&& offsetof(T, reg_mr) ==
                                7 * kSlot&& offsetof(T, reg_mr_dmabuf) ==
                                8 * kSlot&& offsetof(T, dereg_mr) ==
                                9 * kSlot&& offsetof(T, iallreduce) == 10 * kSlot;

template <class T, size_t First>
constexpr bool kCollTail = offsetof(T, iflush) == First* kSlot&& offsetof(T, test) ==
                           (First + 1) * kSlot&& offsetof(T, close_coll) ==
                           (First + 2) * kSlot&& offsetof(T, close_listen) == (First + 3) * kSlot;

template <class T>
constexpr bool kGatherSlots = kCollSlots<T>&& kCollTail<T, 13>&& offsetof(T, iallgather) ==
                              11 * kSlot&& offsetof(T, ireducescatter) == 12 * kSlot;

static_assert(kCollSlots<CollNetV6> && kCollTail<CollNetV6, 11> && sizeof(CollNetV6) == 120);
static_assert(kCollSlots<CollNetV7> && kCollTail<CollNetV7, 11> && sizeof(CollNetV7) == 120);
static_assert(kGatherSlots<CollNetV8> && sizeof(CollNetV8) == 136);
static_assert(kGatherSlots<CollNetV9> && sizeof(CollNetV9) == 144);
static_assert(kGatherSlots<CollNetV10> && sizeof(CollNetV10) == 144);
static_assert(kGatherSlots<CollNetV11> && sizeof(CollNetV11) == 152);
static_assert(kGatherSlots<CollNetV12> && sizeof(CollNetV12) == 152);
static_assert(offsetof(CollNetV9, make_vdevice) == 17 * kSlot);
static_assert(offsetof(CollNetV11, make_vdevice) == 17 * kSlot);
static_assert(offsetof(CollNetV12, make_vdevice) == 17 * kSlot);
static_assert(offsetof(CollNetV11, finalize) == 18 * kSlot);
static_assert(offsetof(CollNetV12, finalize) == 18 * kSlot);

// By version, for code that is written once for all of them.
template <int V>
struct NetOf;
template <int V>
struct CollNetOf;
template <>
struct NetOf<6> {
  using Type = NetV6;
};
template <>
struct NetOf<7> {
  using Type = NetV7;
};
template <>
struct NetOf<8> {
  using Type = NetV8;
};
template <>
struct NetOf<9> {
  using Type = NetV9;
};
template <>
struct NetOf<10> {
  using Type = NetV10;
};
template <>
struct NetOf<11> {
  using Type = NetV11;
};
template <>
struct NetOf<12> {
  using Type = NetV12;
};
template <>
struct CollNetOf<6> {
  using Type = CollNetV6;
};
template <>
struct CollNetOf<7> {
  using Type = CollNetV7;
};
template <>
struct CollNetOf<8> {
  using Type = CollNetV8;
};
template <>
struct CollNetOf<9> {
  using Type = CollNetV9;
};
template <>
struct CollNetOf<10> {
  using Type = CollNetV10;
};
template <>
struct CollNetOf<11> {
  using Type = CollNetV11;
};
template <>
struct CollNetOf<12> {
  using Type = CollNetV12;
};
template <int V>
using Net = typename NetOf<V>::Type;
template <int V>
using CollNet = typename CollNetOf<V>::Type;
inline constexpr int kOldest = 6, kNewest = 12;

}  // namespace prunex::nccl::abi
