// SPDX-License-Identifier: Apache-2.0
// Libraries whose files are broken: an error, where the loader would end the process.
#include "plugin/base/library.h"

#include <dlfcn.h>
#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "plugin/base/elf_file.h"

namespace prunex {
namespace {

using testing::HasSubstr;

class Library : public testing::Test {
 protected:
  void SetUp() override {
    Dl_info libm{};
    ASSERT_NE(::dladdr(reinterpret_cast<void*>(static_cast<double (*)(double)>(&std::cbrt)), &libm),
              0);
    std::ifstream in(libm.dli_fname, std::ios::binary);
    whole_.assign(std::istreambuf_iterator<char>(in), {});
    ASSERT_GT(whole_.size(), 10000U);
    char folder[] = "/tmp/prunex-library-XXXXXX";
    ASSERT_NE(::mkdtemp(folder), nullptr);
    folder_ = folder;
    path_ = folder_ + "/libcopy.so";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void write(const std::string& bytes) {
    std::filesystem::remove(path_);  // another file, not another length of a mapped one
    std::ofstream(path_, std::ios::binary) << bytes;
  }
  template <class T>
  std::string with(size_t at, T value) const {
    std::string bent = whole_;
    std::memcpy(bent.data() + at, &value, sizeof value);
    return bent;
  }

  std::string whole_, folder_, path_;
};

TEST_F(Library, A2_file_cut_short_is_told_with_its_name_and_length) {
  for (const size_t length :
       {size_t{0}, size_t{10}, size_t{64}, size_t{5000}, whole_.size() / 2, whole_.size() - 1}) {
    write(whole_.substr(0, length));
    const auto opened = open_shared(path_);
    ASSERT_FALSE(opened) << length;
    EXPECT_EQ(opened.error().code, Code::unsupported);
    EXPECT_THAT(opened.error().text, HasSubstr(path_ + ": library file truncated"));
    EXPECT_THAT(opened.error().text, HasSubstr("it has " + std::to_string(length)));
  }
}

TEST_F(Library, whole_file_is_opened) {
  write(whole_);
  const auto opened = open_shared(path_);
  ASSERT_TRUE(opened) << opened.error().text;
  EXPECT_NE(::dlsym(*opened, "cbrt"), nullptr);
  write(whole_.substr(0, 5000));  // it is in the process: its file does not matter any more
  const auto again = open_shared(path_);
  ASSERT_TRUE(again) << again.error().text;
  EXPECT_EQ(*again, *opened);
  ::dlclose(*again);
  ::dlclose(*opened);
}

TEST_F(Library, what_is_no_library_is_the_loaders_to_refuse) {
  write(std::string(5000, 'x'));
  const auto opened = open_shared(path_);
  ASSERT_FALSE(opened);
  EXPECT_THAT(opened.error().text, HasSubstr("invalid ELF header"));
  const auto absent = open_shared("libprunex-nowhere.so.1");
  ASSERT_FALSE(absent);
  EXPECT_THAT(absent.error().text, HasSubstr("libprunex-nowhere.so.1: cannot open shared object"));
}

// Whatever a broken header claims, sums that wrap included, nothing outside the file is read.
TEST_F(Library, headers_that_claim_too_much) {
  constexpr uint64_t kFar = UINT64_MAX - 7;
  for (const size_t at : {offsetof(Elf64_Ehdr, e_phoff), offsetof(Elf64_Ehdr, e_shoff)}) {
    write(with(at, kFar));
    const auto complete = check_elf_complete(path_);
    ASSERT_FALSE(complete) << at;
    EXPECT_THAT(complete.error().text, HasSubstr("truncated"));
  }
  Elf64_Ehdr header;
  std::memcpy(&header, whole_.data(), sizeof header);
  for (const size_t field : {offsetof(Elf64_Phdr, p_offset), offsetof(Elf64_Phdr, p_filesz)}) {
    write(with(static_cast<size_t>(header.e_phoff) + field, kFar));
    const auto complete = check_elf_complete(path_);
    ASSERT_FALSE(complete) << field;
    EXPECT_THAT(complete.error().text, HasSubstr("truncated"));
  }
}

TEST_F(Library, folder_or_nothing_at_all) {
  const auto folder = check_elf_complete(folder_);
  ASSERT_FALSE(folder);
  EXPECT_THAT(folder.error().text, HasSubstr("it is a folder"));
  const auto nothing = check_elf_complete(path_);
  ASSERT_FALSE(nothing);
  EXPECT_EQ(nothing.error().sys_errno, ENOENT);
}

}  // namespace
}  // namespace prunex
