// SPDX-License-Identifier: Apache-2.0
// Codecs work in steps, so that a progress thread never stays long in one call: a step handles at
// most `budget` bytes (source bytes when encoding, destination bytes when decoding) but always
// some. begin() allocates nothing and may be called again at any time; the memory that it was given
// must stay until the last step. After an answer other than `more` every further step repeats it.
#pragma once
#include <cstdint>

namespace prunex::nccl::codec {

enum class Encoding : uint8_t {
  more,
  done,
  does_not_pay,  // would hardly be smaller than the source, or does not fit: send it raw
  violated,      // the mask drops a byte that is not zero: send it raw
};

enum class Decoding : uint8_t { more, done, corrupt };

}  // namespace prunex::nccl::codec
