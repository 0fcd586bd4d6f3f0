// SPDX-License-Identifier: Apache-2.0
#pragma once

// NOLINTBEGIN(readability-identifier-naming) names that others have given

namespace thrust {

template <class T>
class counting_iterator {
 public:
  explicit counting_iterator(T first) : first_(first) {}
  template <class Index>
  T operator[](Index i) const {
    return static_cast<T>(first_ + static_cast<T>(i));
  }
  template <class Index>
  counting_iterator operator+(Index i) const {
    return counting_iterator((*this)[i]);
  }

 private:
  T first_;
};

}  // namespace thrust

// NOLINTEND(readability-identifier-naming)
