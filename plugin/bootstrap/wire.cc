// SPDX-License-Identifier: Apache-2.0
#include "plugin/bootstrap/wire.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace prunex::wire {
namespace {

template <class Int>
void put(std::string& out, Int value) {
  for (size_t i = 0; i < sizeof value; ++i) {
    out += static_cast<char>(static_cast<uint64_t>(value) >> (8 * i) & 0xFF);
  }
}

void put_text(std::string& out, std::string_view text) {
  put<uint32_t>(out, static_cast<uint32_t>(text.size()));
  out += text;
}

// Reads forward; the first failure sticks, so that a decoder asks once, at the end.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <class Int>
  Int get() {
    uint64_t value = 0;
    if (take(sizeof(Int))) {
      for (size_t i = 0; i < sizeof(Int); ++i) {
        value |= std::to_integer<uint64_t>(taken_[i]) << (8 * i);
      }
    }
    return static_cast<Int>(value);
  }
  std::string get_text(size_t most) {
    const size_t length = get<uint32_t>();
    if (length > most || !take(length)) {
      ok_ = false;
      return {};
    }
    return {reinterpret_cast<const char*>(taken_.data()), length};
  }
  std::span<const std::byte> get_bytes(uint64_t length) {
    return length <= rest_.size() && take(static_cast<size_t>(length)) ? taken_ : fail_empty();
  }
  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] bool complete() const { return ok_ && rest_.empty(); }

 private:
  bool take(size_t length) {
    ok_ = ok_ && length <= rest_.size();
    if (ok_) {
      taken_ = rest_.first(length);
      rest_ = rest_.subspan(length);
    }
    return ok_;
  }
  std::span<const std::byte> fail_empty() {
    ok_ = false;
    return {};
  }

  std::span<const std::byte> rest_, taken_;
  bool ok_ = true;
};

tl::unexpected<Error> malformed(const char* what, size_t bytes) {
  return fail(Code::invalid_argument, strf("malformed %s of %zu bytes", what, bytes));
}

}  // namespace

uint64_t max_length(Kind kind, int size) {
  const uint64_t ranks = size > 0 ? static_cast<uint64_t>(size) : 0;
  switch (kind) {
    case Kind::hello:
      return 4 + 4 + sizeof(Cookie) + 4 + kMaxName;
    case Kind::refuse:
      return 2 + 4 + kMaxText;
    case Kind::report:
    case Kind::verdict:
      return 4 + 2 + 4 + kMaxText;
    case Kind::gather:
      return kMaxRecord;
    case Kind::gathered:
      return ranks * (8 + kMaxRecord);
    default:
      return 0;
  }
}

Result<Header> decode_header(std::span<const std::byte> bytes, int size) {
  Reader in(bytes);
  const auto magic = in.get<uint32_t>();
  const auto version = in.get<uint16_t>();
  const auto kind = in.get<uint16_t>();
  Header out;
  out.sequence = in.get<uint64_t>();
  out.length = in.get<uint64_t>();
  if (!in.complete() || magic != kMagic) {
    return fail(Code::invalid_argument, "what answers there is not PruneX");
  }
  if (version != kVersion) {
    return fail(
        Code::mismatch,
        strf("the other end speaks bootstrap version %u, this library speaks %u; use the same "
             "PruneX everywhere",
             unsigned{version}, unsigned{kVersion}));
  }
  if (kind < 1 || kind > kLastKind) {
    return fail(Code::invalid_argument, strf("unknown message kind %u", unsigned{kind}));
  }
  out.kind = static_cast<Kind>(kind);
  if (out.length > max_length(out.kind, size)) {
    return fail(Code::invalid_argument,
                strf("message of kind %u claims %llu bytes, at most %llu are allowed",
                     unsigned{kind}, static_cast<unsigned long long>(out.length),
                     static_cast<unsigned long long>(max_length(out.kind, size))));
  }
  return out;
}

std::string encode_frame(Kind kind, uint64_t sequence, std::string_view body) {
  std::string out;
  out.reserve(kHeaderBytes + body.size());
  put(out, kMagic);
  put(out, kVersion);
  put(out, static_cast<uint16_t>(kind));
  put(out, sequence);
  put(out, uint64_t{body.size()});
  out += body;
  return out;
}

std::string encode(const Hello& hello) {
  std::string out;
  put(out, hello.rank);
  put(out, hello.size);
  out.append(reinterpret_cast<const char*>(hello.cookie.data()), hello.cookie.size());
  put_text(out, std::string_view(hello.name).substr(0, kMaxName));
  return out;
}

Result<Hello> decode_hello(std::span<const std::byte> body) {
  Reader in(body);
  Hello out;
  out.rank = in.get<uint32_t>();
  out.size = in.get<uint32_t>();
  const auto cookie = in.get_bytes(out.cookie.size());
  std::ranges::copy(cookie, out.cookie.begin());
  out.name = in.get_text(kMaxName);
  if (!in.complete()) {
    return malformed("hello", body.size());
  }
  return out;
}

std::string encode(const Refusal& refusal) {
  std::string out;
  put(out, static_cast<uint16_t>(refusal.reason));
  put_text(out, std::string_view(refusal.text).substr(0, kMaxText));
  return out;
}

Result<Refusal> decode_refusal(std::span<const std::byte> body) {
  Reader in(body);
  Refusal out;
  const auto reason = in.get<uint16_t>();
  out.text = in.get_text(kMaxText);
  if (!in.complete() || reason < 1 || reason > static_cast<uint16_t>(Reason::duplicate)) {
    return malformed("refusal", body.size());
  }
  out.reason = static_cast<Reason>(reason);
  return out;
}

std::string encode(const Verdict& verdict) {
  std::string out;
  put(out, static_cast<uint32_t>(verdict.culprit));
  put(out, static_cast<uint16_t>(verdict.code));
  put_text(out, std::string_view(verdict.text).substr(0, kMaxText));
  return out;
}

Result<Verdict> decode_verdict(std::span<const std::byte> body, int size) {
  Reader in(body);
  Verdict out;
  out.culprit = static_cast<int32_t>(in.get<uint32_t>());
  const auto code = in.get<uint16_t>();
  out.text = in.get_text(kMaxText);
  if (!in.complete() || out.culprit < -1 || out.culprit >= size ||
      code > static_cast<uint16_t>(Code::internal)) {
    return malformed("verdict", body.size());
  }
  out.code = static_cast<Code>(code);
  return out;
}

std::string encode_records(std::span<const std::string_view> records) {
  std::string out;
  size_t total = records.size() * 8;
  for (const std::string_view one : records) {
    total += one.size();
  }
  out.reserve(total);
  for (const std::string_view one : records) {
    put(out, uint64_t{one.size()});
  }
  for (const std::string_view one : records) {
    out += one;
  }
  return out;
}

Result<std::vector<std::string>> decode_records(std::span<const std::byte> body, int size) {
  Reader in(body);
  std::vector<uint64_t> lengths;
  for (int rank = 0; rank < size && in.ok(); ++rank) {
    lengths.push_back(in.get<uint64_t>());
  }
  std::vector<std::string> out;
  for (size_t i = 0; i < lengths.size() && in.ok(); ++i) {
    const auto record = in.get_bytes(lengths[i]);
    out.emplace_back(reinterpret_cast<const char*>(record.data()), record.size());
  }
  if (!in.complete() || out.size() != static_cast<size_t>(std::max(size, 0))) {
    return malformed("all-gather result", body.size());
  }
  return out;
}

std::string encode(const RootCard& card) {
  std::string out = strf("prunex%u ", unsigned{kVersion});
  for (const std::byte b : card.cookie) {
    out += strf("%02x", std::to_integer<unsigned>(b));
  }
  for (size_t i = 0; i < card.addresses.size() && i < kMaxCardAddresses; ++i) {
    out += ' ' + to_text(card.addresses[i]);
  }
  return out;
}

Result<RootCard> decode_card(std::string_view text) {
  const std::string shown(text.substr(0, 80));
  const auto wrong = [&](const char* what) {
    return fail(Code::mismatch, strf("rank 0's entry in the store, '%s', %s", shown.c_str(), what));
  };
  const auto word = [&] {
    const size_t end = std::min(text.find(' '), text.size());
    const std::string_view out = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    return out;
  };
  if (word() != strf("prunex%u", unsigned{kVersion})) {
    return wrong("is not of this version of PruneX; use the same PruneX everywhere");
  }
  RootCard out;
  const std::string_view hex = word();
  if (hex.size() != 2 * out.cookie.size()) {
    return wrong("is cut short");
  }
  for (size_t i = 0; i < out.cookie.size(); ++i) {
    unsigned value = 0;
    for (const char c : hex.substr(2 * i, 2)) {
      const bool digit = c >= '0' && c <= '9', letter = c >= 'a' && c <= 'f';
      if (!digit && !letter) {
        return wrong("holds no cookie");
      }
      value = value * 16 + static_cast<unsigned>(digit ? c - '0' : c - 'a' + 10);
    }
    out.cookie[i] = static_cast<std::byte>(value);
  }
  while (!text.empty()) {
    const auto address = parse_address(word());
    if (!address || out.addresses.size() == kMaxCardAddresses) {
      return wrong("holds no address list");
    }
    out.addresses.push_back(*address);
  }
  if (out.addresses.empty()) {
    return wrong("holds no address");
  }
  return out;
}

}  // namespace prunex::wire
