// SPDX-License-Identifier: Apache-2.0
// The bytes that cross between builds: pinned, and refused when cut, changed or of another
// transport.
#include "plugin/transport/socket/wire.h"

#include <gtest/gtest.h>

#include "plugin/transport/shm/wire.h"

namespace prunex::transport {
namespace {

std::string hex(std::span<const std::byte> bytes) {
  std::string out;
  for (const std::byte b : bytes) {
    out += strf("%02x", static_cast<unsigned>(b));
  }
  return out;
}

Cookie counting_cookie() {
  Cookie c;
  for (size_t i = 0; i < c.size(); ++i) {
    c[i] = static_cast<std::byte>(0xA0 + i);
  }
  return c;
}
constexpr const char* kCookieHex = "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf";

TEST(Wire, handle_bytes) {
  const Handle v4{*parse_address("10.1.2.3:4711"), counting_cookie()};
  const std::string bytes = encode(v4);
  EXPECT_EQ(hex(std::as_bytes(std::span(bytes))),
            std::string("50525848"  // PRXH
                        "0100"      // version 1
                        "0100") +   // socket
                kCookieHex +
                "0400"  // IPv4
                "6712"  // port 4711
                "0a010203000000000000000000000000");
  auto back = decode_handle(bytes);
  ASSERT_TRUE(back);
  EXPECT_EQ(to_text(back->address), "10.1.2.3:4711");
  EXPECT_TRUE(same_cookie(back->cookie, v4.cookie));
  const Handle v6{*parse_address("[fd00::1]:80"), counting_cookie()};
  back = decode_handle(encode(v6));
  ASSERT_TRUE(back);
  EXPECT_EQ(to_text(back->address), "[fd00::1]:80");
}

// Bytes that mean nothing are zero: what else stands there was changed on the way.
TEST(Wire, spare_bytes_of_a_handle_are_zero) {
  const std::string good = encode(Handle{*parse_address("10.1.2.3:4711"), counting_cookie()});
  constexpr size_t kSpareOfPrefix = 7, kFirstSpareOfHost = kHandlePrefixBytes + 4 + 4;
  for (size_t at : {kSpareOfPrefix, kFirstSpareOfHost, good.size() - 1}) {
    std::string bad = good;
    bad[at] = 1;
    const auto back = decode_handle(bad);
    ASSERT_FALSE(back) << at;
    EXPECT_NE(back.error().text.find("damaged"), std::string::npos) << back.error().text;
  }
}

TEST(Wire, hello_bytes) {
  Hello h;
  h.text_bytes = 7;
  h.cookie = counting_cookie();
  h.connection = 0x1122334455667788;
  h.stream = 2;
  h.streams = 3;
  h.first_sequence = 0xFFFFFFFD;
  const auto bytes = encode(h);
  EXPECT_EQ(hex(bytes), std::string("50525843"  // PRXC
                                    "0100"      // version 1
                                    "0700") +   // bytes of text
                            kCookieHex +
                            "8877665544332211"  // connection
                            "0200"              // stream 2
                            "0300"              // of 3
                            "fdffffff");
  Hello back;
  ASSERT_TRUE(decode_hello(bytes, &back));
  EXPECT_EQ(back.connection, h.connection);
  EXPECT_EQ(back.first_sequence, h.first_sequence);
  for (size_t n = 0; n <= bytes.size(); ++n) {
    EXPECT_TRUE(may_be_hello(std::span(bytes).first(n))) << n;
  }
  auto other = bytes;
  other[3] = std::byte{0};
  EXPECT_TRUE(may_be_hello(std::span(other).first(3)));
  EXPECT_FALSE(may_be_hello(std::span(other).first(4)));
  EXPECT_FALSE(decode_hello(other, &back));
}

TEST(Wire, fragment_bytes) {
  const FragmentHeader h{0, 0, 0x01020304, 0x1000, 0x0F80, 0x80};
  const auto bytes = encode(h);
  EXPECT_EQ(hex(bytes),
            "5058"  // PX
            "00"    // raw
            "00"
            "04030201"
            "0010000000000000"
            "800f000000000000"
            "8000000000000000");
  FragmentHeader back;
  ASSERT_TRUE(decode_fragment(bytes, &back));
  EXPECT_EQ(back.sequence, h.sequence);
  EXPECT_EQ(back.offset + back.length, back.message);
}

TEST(Wire, handles_of_another_transport_name_both) {
  const std::string tcp = encode(Handle{*parse_address("10.1.2.3:4711"), counting_cookie()});
  const std::string shm =
      shm::encode(shm::Handle{"/dev/shm/prunex-" + std::string(32, 'a'), counting_cookie()});
  ASSERT_TRUE(shm::decode_handle(shm));
  for (const Error& error : {decode_handle(shm).error(), shm::decode_handle(tcp).error()}) {
    EXPECT_EQ(error.code, Code::mismatch);
    EXPECT_NE(error.text.find("socket"), std::string::npos) << error.text;
    EXPECT_NE(error.text.find("shm"), std::string::npos) << error.text;
  }
}

TEST(Wire, shm_handles_open_no_other_path) {
  const std::string good =
      shm::encode(shm::Handle{"/dev/shm/prunex-" + std::string(32, 'a'), counting_cookie()});
  for (const std::string path : {"/etc/passwd", "/dev/shm/prunex-../../x", "/dev/shm/prunex-A"}) {
    std::string bad = good;
    std::string padded = path;
    padded.resize(shm::kNameBytes, 'a');
    bad.replace(kHandlePrefixBytes, shm::kNameBytes, padded);
    EXPECT_FALSE(shm::decode_handle(bad)) << path;
  }
}

}  // namespace
}  // namespace prunex::transport
