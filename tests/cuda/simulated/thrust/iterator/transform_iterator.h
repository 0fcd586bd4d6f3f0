// SPDX-License-Identifier: Apache-2.0
#pragma once

// NOLINTBEGIN(readability-identifier-naming) names that others have given

namespace thrust {

template <class Function, class Base>
class transform_iterator {
 public:
  transform_iterator(Base base, Function function) : base_(base), function_(function) {}
  template <class Index>
  auto operator[](Index i) const {
    return function_(base_[i]);
  }
  template <class Index>
  transform_iterator operator+(Index i) const {
    return {base_ + i, function_};
  }

 private:
  Base base_;
  Function function_;
};

template <class Function, class Base>
transform_iterator<Function, Base> make_transform_iterator(Base base, Function function) {
  return {base, function};
}

}  // namespace thrust

// NOLINTEND(readability-identifier-naming)
