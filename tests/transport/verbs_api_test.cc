// SPDX-License-Identifier: Apache-2.0
// Finding libibverbs at run time, and the fake by the same rules.
#include <gtest/gtest.h>

#include <cerrno>

#include "plugin/transport/verbs/api.h"
#include "plugin/transport/verbs/verbs.h"
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

// What libibverbs answers on a machine whose kernel has no RDMA at all, the commonest of all.
TEST(VerbsApi, a_kernel_without_rdma_is_told_with_the_remedy) {
  fake::World world({});
  world.api_to_change().get_device_list = [](int*) -> ibv_device** {
    errno = ENOSYS;
    return nullptr;
  };
  VerbsOptions options;
  options.api = &world.api();
  const auto none = list_verbs_ports(options);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Code::unsupported);
  for (const char* part : {"this kernel", "ib_uverbs", "driver"}) {
    EXPECT_NE(none.error().text.find(part), std::string::npos) << none.error().text;
  }
  world.api_to_change().get_device_list = [](int*) -> ibv_device** {
    errno = ENOMEM;
    return nullptr;
  };
  const auto other = list_verbs_ports(options);
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().text.find("Cannot allocate memory"), std::string::npos)
      << other.error().text;
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
