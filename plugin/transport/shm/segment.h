// SPDX-License-Identifier: Apache-2.0
// A piece of memory that processes of one machine share: a file in /dev/shm with a random name. All
// its pages are reserved at creation, because a full /dev/shm (64 MB in containers) would otherwise
// kill the process with SIGBUS at the first touch.
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "plugin/base/result.h"

namespace prunex::transport::shm {

class Segment {
 public:
  Segment() = default;
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();  // unmaps; the creator also removes the name if nobody has yet

  // Zero-filled, page-aligned. The file is readable by this user only.
  [[nodiscard]] static Result<Segment> create(size_t bytes);
  // `name` as name() of the creator, who must have created at least `bytes`. The name may come from
  // another process: anything but a file of this user that create() could have made is refused.
  [[nodiscard]] static Result<Segment> attach(std::string_view name, size_t bytes);

  // Removes the name; the memory lives on in whoever has it mapped. Call it once everybody has:
  // then nothing is left behind however the processes end.
  void unlink();

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] size_t size() const { return bytes_; }
  [[nodiscard]] std::span<std::byte> span() const { return {data_, bytes_}; }
  [[nodiscard]] const std::string& name() const { return name_; }  // "/dev/shm/prunex-…"
  [[nodiscard]] explicit operator bool() const { return data_ != nullptr; }

 private:
  Segment(std::byte* data, size_t bytes, std::string name, bool owner)
      : data_(data), bytes_(bytes), name_(std::move(name)), owns_name_(owner) {}
  void release();

  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  std::string name_;
  bool owns_name_ = false;
};

// "/dev/shm/prunex-" and 32 random hexadecimal digits.
[[nodiscard]] Result<std::string> random_name();
// Whether random_name() could have made it: no other path is ever opened at another process's
// request.
[[nodiscard]] bool is_valid_name(std::string_view name);

}  // namespace prunex::transport::shm
