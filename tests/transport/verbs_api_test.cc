// SPDX-License-Identifier: Apache-2.0
// Finding libibverbs at run time, and the fake by the same rules.
#include <gtest/gtest.h>

#include "plugin/transport/verbs/api.h"
#include "tests/transport/fake_verbs.h"

namespace prunex::transport::verbs {
namespace {

TEST(VerbsApi, a_missing_library_is_an_error_in_the_linkers_words) {
  const auto r = open_library("libno-such-verbs.so.1");
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code, Code::unsupported);
  EXPECT_NE(r.error().text.find("libno-such-verbs.so.1: cannot open shared object file"),
            std::string::npos)
      << r.error().text;
}

TEST(VerbsApi, a_library_without_the_functions_names_one) {
  const auto r = open_library("libm.so.6");
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code, Code::unsupported);
  EXPECT_NE(r.error().text.find("ibv_get_device_list"), std::string::npos) << r.error().text;
}

TEST(VerbsApi, the_installed_library_has_them_all) {
  const auto r = load_api();
  if (!r) {
    EXPECT_NE(r.error().text.find("libibverbs.so.1"), std::string::npos) << r.error().text;
    GTEST_SKIP() << r.error().text;
  }
  EXPECT_NE((*r)->create_qp, nullptr);
  EXPECT_NE((*r)->query_port, nullptr);
  int n = -1;  // also where there is no device
  ibv_device** list = (*r)->get_device_list(&n);
  if (list != nullptr) {
    EXPECT_GE(n, 0);
    (*r)->free_device_list(list);
  }
}

TEST(VerbsApi, ports_are_read_through_the_older_entry_too) {
  fake::FakeDevice device = fake::plain_device();
  device.ports[0].lid = 7;
  fake::World world({device});
  const Api& api = world.api();
  int n = 0;
  ibv_device** list = api.get_device_list(&n);
  ASSERT_EQ(n, 1);
  ibv_context* context = api.open_device(list[0]);
  api.free_device_list(list);
  ibv_port_attr attr;
  ASSERT_EQ(port_of(api, context, 1, &attr), 0);
  EXPECT_EQ(attr.lid, 7);
  EXPECT_EQ(attr.link_layer, IBV_LINK_LAYER_ETHERNET);
  EXPECT_NE(port_of(api, context, 2, &attr), 0);
  api.close_device(context);
}

}  // namespace
}  // namespace prunex::transport::verbs
