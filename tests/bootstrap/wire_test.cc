// SPDX-License-Identifier: Apache-2.0
#include "plugin/bootstrap/wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plugin/base/address.h"

namespace prunex::wire {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Wire, frames_are_little_endian_bytes) {
  const std::string frame = encode_frame(Kind::gather, 0x0102030405060708, "xy");
  const std::string expected(
      "PRX1\x01\x00\x06\x00\x08\x07\x06\x05\x04\x03\x02\x01"
      "\x02\x00\x00\x00\x00\x00\x00\x00xy",
      26);
  EXPECT_EQ(frame, expected);
  const auto header = decode_header(bytes_of(frame).first(kHeaderBytes), 2);
  ASSERT_TRUE(header);
  EXPECT_EQ(header->kind, Kind::gather);
  EXPECT_EQ(header->sequence, 0x0102030405060708u);
  EXPECT_EQ(header->length, 2u);
}

std::string header_with(size_t offset, char value) {
  std::string out = encode_frame(Kind::hello, 0, {});
  out[offset] = value;
  return out;
}

TEST(Wire, header_refuses_strangers_versions_kinds_and_lengths) {
  const auto code = [](const std::string& bytes) {
    return decode_header(bytes_of(bytes), 4).error().code;
  };
  EXPECT_EQ(code(header_with(0, 'G')), Code::invalid_argument);
  EXPECT_EQ(code("GET / HTTP/1.1\r\nHost: a\r\n"), Code::invalid_argument);
  EXPECT_EQ(code(std::string(10, 'P')), Code::invalid_argument);
  EXPECT_EQ(code(""), Code::invalid_argument);
  EXPECT_EQ(code(header_with(6, 0)), Code::invalid_argument);
  EXPECT_EQ(code(header_with(6, 99)), Code::invalid_argument);
  EXPECT_EQ(code(header_with(23, 1)), Code::invalid_argument);  // length 2^56
  EXPECT_EQ(code(header_with(17, 2)), Code::invalid_argument);  // a hello of 512 bytes
  const auto version = decode_header(bytes_of(header_with(4, 9)), 4);
  EXPECT_EQ(version.error().code, Code::mismatch);
  EXPECT_THAT(version.error().text, AllOf(HasSubstr("version 9"), HasSubstr("speaks 1")));
}

TEST(Wire, limits_follow_the_world) {
  EXPECT_EQ(max_length(Kind::goodbye, 4), 0u);
  EXPECT_EQ(max_length(Kind::gather, 4), kMaxRecord);
  EXPECT_EQ(max_length(Kind::gathered, 4), 4 * (8 + kMaxRecord));
  EXPECT_EQ(max_length(Kind::gathered, -1), 0u);
  EXPECT_EQ(encode(Hello{1, 2, {}, std::string(kMaxName, 'n')}).size(), max_length(Kind::hello, 2));
  EXPECT_EQ(encode(Verdict{1, Code::timeout, std::string(9000, 'n')}).size(),
            max_length(Kind::verdict, 2));
}

// Every proper prefix and every extension of a good body is refused.
template <class Decode>
void expect_exact(const std::string& body, const Decode& decode) {
  EXPECT_TRUE(decode(bytes_of(body)));
  for (size_t n = 0; n < body.size(); ++n) {
    EXPECT_FALSE(decode(bytes_of(body).first(n))) << n << " of " << body.size();
  }
  EXPECT_FALSE(decode(bytes_of(body + '\0')));
}

TEST(Wire, bodies_go_round_and_are_taken_whole_only) {
  Hello hello{7, 9, *random_cookie(), "train"};
  const auto got = decode_hello(bytes_of(encode(hello)));
  ASSERT_TRUE(got);
  EXPECT_EQ(got->rank, 7u);
  EXPECT_EQ(got->size, 9u);
  EXPECT_EQ(got->name, "train");
  EXPECT_TRUE(same_cookie(got->cookie, hello.cookie));
  expect_exact(encode(hello), decode_hello);

  const Refusal refusal{Reason::duplicate, "twice"};
  EXPECT_EQ(decode_refusal(bytes_of(encode(refusal)))->text, "twice");
  EXPECT_EQ(decode_refusal(bytes_of(encode(refusal)))->reason, Reason::duplicate);
  expect_exact(encode(refusal), decode_refusal);

  const auto decode = [](std::span<const std::byte> body) { return decode_verdict(body, 4); };
  const auto verdict = decode(bytes_of(encode(Verdict{3, Code::timeout, "late"})));
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->culprit, 3);
  EXPECT_EQ(verdict->code, Code::timeout);
  EXPECT_EQ(verdict->text, "late");
  EXPECT_EQ(decode(bytes_of(encode(Verdict{-1, Code::internal, ""})))->culprit, -1);
  expect_exact(encode(Verdict{3, Code::timeout, "late"}), decode);
  EXPECT_FALSE(decode(bytes_of(encode(Verdict{4, Code::timeout, ""}))));
  EXPECT_FALSE(decode(bytes_of(encode(Verdict{-2, Code::timeout, ""}))));
  EXPECT_FALSE(decode(bytes_of(encode(Verdict{0, static_cast<Code>(999), ""}))));
}

TEST(Wire, records) {
  const std::vector<std::string_view> records = {"a", "", std::string_view("\0b", 2)};
  const std::string body = encode_records(records);
  const auto decode = [](std::span<const std::byte> bytes) { return decode_records(bytes, 3); };
  EXPECT_THAT(*decode(bytes_of(body)), ElementsAre("a", "", std::string("\0b", 2)));
  expect_exact(body, decode);
  EXPECT_FALSE(decode_records(bytes_of(body), 2));
  EXPECT_FALSE(decode_records(bytes_of(body), 4));
  std::string huge = body;
  huge[7] = '\x7F';  // a first record of 2^63 bytes
  EXPECT_FALSE(decode(bytes_of(huge)));
  std::string wrap = body;
  for (size_t i = 0; i < 8; ++i) {
    wrap[i] = '\xFF';
  }
  EXPECT_FALSE(decode(bytes_of(wrap)));
}

TEST(Wire, card) {
  RootCard card{*random_cookie(), {*parse_address("10.0.0.1:80"), *parse_address("[fd00::1]:81")}};
  const auto got = decode_card(encode(card));
  ASSERT_TRUE(got) << got.error().text;
  EXPECT_TRUE(same_cookie(got->cookie, card.cookie));
  ASSERT_EQ(got->addresses.size(), 2u);
  EXPECT_EQ(to_text(got->addresses[1]), "[fd00::1]:81");
  const std::string hex(32, '0');
  for (const std::string& text :
       {std::string(), std::string("junk"), "prunex2 " + hex + " 10.0.0.1:80", "prunex1 " + hex,
        std::string("prunex1 12 10.0.0.1:80"), "prunex1 " + std::string(32, 'x') + " 10.0.0.1:80",
        "prunex1 " + hex + " host:80", "prunex1 " + hex + " 10.0.0.1",
        "prunex1 " + hex + "  10.0.0.1:80"}) {
    const auto bad = decode_card(text);
    ASSERT_FALSE(bad) << text;
    EXPECT_EQ(bad.error().code, Code::mismatch);
  }
  std::string many = "prunex1 " + hex;
  for (size_t i = 0; i <= kMaxCardAddresses; ++i) {
    many += " 10.0.0.1:80";
  }
  EXPECT_FALSE(decode_card(many));
}

}  // namespace
}  // namespace prunex::wire
