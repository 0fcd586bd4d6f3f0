// SPDX-License-Identifier: Apache-2.0
// The passes of H-SADMM against their formulas, element by element. Data are small whole numbers
// and factors powers of two, so that every result is exact; on other data the instruction sets
// agree.
#include "kernels/admm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/pack.h"

namespace prunex::admm {
namespace {

using Floats = std::vector<float>;

// A model of odd sizes, with memory of its own for each parameter, and a mask.
struct Net {
  explicit Net(uint64_t seed, bool whole_numbers = true, double density = 0.5)
      : rng(seed), whole(whole_numbers) {
    for (const uint64_t size : {9U, 1U, 0U, 5000U, 64U, 8U, 12345U}) {
      offsets.push_back(offsets.back() + size);
    }
    const uint64_t count = offsets.back();
    keep.resize(count, 1);
    std::bernoulli_distribution keeps(density);
    for (uint64_t at = 9; at < count;) {  // the first parameter is whole
      const uint64_t end = std::min<uint64_t>(count, at + 1 + rng() % (at > 6000 ? 700 : 12));
      std::fill(keep.begin() + static_cast<long>(at), keep.begin() + static_cast<long>(end),
                keeps(rng) ? 1 : 0);
      at = end;
    }
    for (size_t i = 0; i + 1 < offsets.size(); ++i) {
      first_run.push_back(runs.size());
      for (uint64_t e = offsets[i]; e < offsets[i + 1]; ++e) {
        if (keep[e] == 0) {
          continue;
        }
        if (runs.size() > first_run.back() && runs.back().end == e) {
          runs.back().end = e + 1;
        } else {
          runs.push_back({e, e + 1});
        }
      }
      thetas.push_back(values(offsets[i + 1] - offsets[i]));
    }
    first_run.push_back(runs.size());
    for (Floats& theta : thetas) {
      pointers.push_back(theta.data());
    }
  }

  Floats values(uint64_t n) {
    Floats out(n);
    std::uniform_int_distribution<int> number(-8, 8);
    std::normal_distribution<float> any;
    for (float& x : out) {
      x = whole ? static_cast<float>(number(rng)) : any(rng);
    }
    return out;
  }
  Floats values() { return values(offsets.back()); }
  Floats inside() {  // 0 outside of the mask
    Floats out = values();
    for (size_t e = 0; e < out.size(); ++e) {
      out[e] = keep[e] != 0 ? out[e] : 0.0F;
    }
    return out;
  }
  [[nodiscard]] size_t parameters() const { return thetas.size(); }
  [[nodiscard]] float theta(size_t e) const {
    const size_t i = owner(e);
    return thetas[i][e - offsets[i]];
  }
  [[nodiscard]] size_t owner(size_t e) const {
    size_t i = 0;
    while (offsets[i + 1] <= e) {
      ++i;
    }
    return i;
  }
  void freeze() {
    for (size_t e = 0; e < keep.size(); ++e) {
      if (keep[e] == 0) {
        const size_t i = owner(e);
        thetas[i][e - offsets[i]] = 0.0F;
      }
    }
  }
  [[nodiscard]] Model model() const {
    return {parameters(), offsets.data(), first_run.data(), runs.data(), pointers.data()};
  }
  // Another factor for every parameter, exact in all products.
  [[nodiscard]] Floats factors() const {
    Floats out;
    for (size_t i = 0; i < parameters(); ++i) {
      out.push_back(i % 2 == 0 ? 0.5F : 2.0F);
    }
    return out;
  }

  std::mt19937_64 rng;
  bool whole;
  std::vector<uint64_t> offsets{0}, first_run;
  std::vector<uint8_t> keep;
  std::vector<Run> runs;
  std::vector<Floats> thetas;
  std::vector<float*> pointers;
};

class Admm : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!isa_available(GetParam())) {
      GTEST_SKIP() << "not on this CPU";
    }
    ASSERT_TRUE(select_isa(GetParam()));
  }
  void TearDown() override { ASSERT_TRUE(select_isa(Isa::automatic)); }
};

TEST_P(Admm, pull_adds_the_proximal_gradient) {
  for (const bool decayed : {false, true}) {
    for (const bool frozen : {false, true}) {
      Net net(1);
      const Floats z_i = net.inside(), u = net.values(), scale = net.factors();
      Floats rho(net.parameters(), 0.25F);
      rho[3] = 4.0F;
      std::vector<Floats> grads;
      std::vector<float*> at;
      for (const Floats& theta : net.thetas) {
        grads.push_back(net.values(theta.size()));
      }
      const std::vector<Floats> before = grads;
      for (Floats& g : grads) {
        at.push_back(g.data());
      }
      at[4] = nullptr;
      pull(net.model(), frozen, decayed, at.data(), rho.data(), z_i.data(), u.data(), scale.data());
      EXPECT_EQ(grads[4], before[4]);
      for (size_t e = 0; e < u.size(); ++e) {
        const size_t i = net.owner(e), k = e - net.offsets[i];
        float want =
            before[i][k] + rho[i] * ((decayed ? 0.0F : net.theta(e)) - z_i[e] + scale[i] * u[e]);
        want = frozen && net.keep[e] == 0 ? 0.0F : want;
        ASSERT_EQ(grads[i][k], i == 4 ? before[i][k] : want) << e;
      }
    }
  }
}

TEST_P(Admm, gather_adds_theta) {
  for (const bool frozen : {false, true}) {
    Net net(2);
    const Floats before = net.values(), scale = net.factors();
    Floats u = before;
    gather(net.model(), frozen, u.data(), scale.data());
    for (size_t e = 0; e < u.size(); ++e) {
      const bool left = frozen && net.keep[e] == 0;
      ASSERT_EQ(u[e], left ? before[e] : scale[net.owner(e)] * before[e] + net.theta(e)) << e;
    }
  }
}

TEST_P(Admm, consensus_projects_and_adds_the_dual) {
  Net net(3);
  const Floats s = net.values(), z = net.values(), before = net.values(), scale = net.factors();
  const Floats rest(net.parameters(), 0.25F);
  Floats y = before, z_i = net.values();
  consensus(net.model(), rest.data(), s.data(), z.data(), y.data(), scale.data(), z_i.data());
  for (size_t e = 0; e < s.size(); ++e) {
    if (net.keep[e] == 0) {
      ASSERT_TRUE(z_i[e] == 0.0F && !std::signbit(z_i[e])) << e;
      ASSERT_TRUE(y[e] == 0.0F && !std::signbit(y[e])) << e;
      continue;
    }
    const float dual = scale[net.owner(e)] * (before[e] - z[e]);
    const float tilde = 0.75F * s[e] + 0.25F * (z[e] - dual);
    ASSERT_EQ(z_i[e], tilde) << e;
    ASSERT_EQ(y[e], tilde + dual) << e;
  }
}

TEST_P(Admm, what_is_dropped_is_not_read) {
  Net net(4);
  Floats s = net.values(), z = net.values(), y = net.values(), z_i(s);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (size_t e = 0; e < s.size(); ++e) {
    if (net.keep[e] == 0) {
      s[e] = z[e] = y[e] = z_i[e] = nan;
    }
  }
  const Floats rest(net.parameters(), 0.25F), one(net.parameters(), 1.0F);
  consensus(net.model(), rest.data(), s.data(), z.data(), y.data(), one.data(), z_i.data());
  for (size_t e = 0; e < s.size(); ++e) {
    ASSERT_TRUE(net.keep[e] != 0 || (z_i[e] == 0.0F && y[e] == 0.0F)) << e;
  }
}

TEST_P(Admm, duals_and_their_norms) {
  for (const bool frozen : {false, true}) {
    for (const bool cut : {false, true}) {
      Net net(5);
      Floats before_u = net.values();
      if (frozen) {
        net.freeze();
        for (size_t e = 0; e < before_u.size(); ++e) {
          before_u[e] = net.keep[e] != 0 ? before_u[e] : 0.0F;
        }
      }
      const Floats old = cut ? net.values() : net.inside(), z_i = net.inside();
      const Floats before_s = frozen ? net.inside() : net.values();
      Floats u = before_u, s = before_s;
      const size_t n = net.parameters();
      std::vector<double> norms(4 * n), want(4 * n);
      duals(net.model(), frozen, cut, old.data(), z_i.data(), u.data(), s.data(), norms.data());
      for (size_t e = 0; e < u.size(); ++e) {
        ASSERT_EQ(u[e], before_u[e] - z_i[e]) << e;
        ASSERT_EQ(s[e], before_s[e] - z_i[e]) << e;
        if (frozen && net.keep[e] == 0) {
          continue;  // a frozen mask was never cut
        }
        const double parts[] = {net.theta(e) - z_i[e], z_i[e] - old[e], z_i[e], u[e]};
        for (size_t k = 0; k < 4; ++k) {
          want[k * n + net.owner(e)] += parts[k] * parts[k];
        }
      }
      EXPECT_EQ(norms, want);
    }
  }
}

TEST_P(Admm, norms_of_what_z_has_changed) {
  for (const bool cut : {false, true}) {
    Net net(6);
    const Floats old = cut ? net.values() : net.inside(), z = net.inside(), z_i = net.inside();
    const size_t n = net.parameters();
    std::vector<double> norms(2 * n), want(2 * n);
    globals(net.model(), cut, old.data(), z.data(), z_i.data(), norms.data());
    for (size_t e = 0; e < z.size(); ++e) {
      const double parts[] = {z[e] - old[e], z_i[e] - z[e]};
      for (size_t k = 0; k < 2; ++k) {
        want[k * n + net.owner(e)] += parts[k] * parts[k];
      }
    }
    EXPECT_EQ(norms, want);
  }
}

TEST_P(Admm, squares_by_place) {
  const uint64_t shapes[][3] = {{1, 7, 1},    {5, 33, 9}, {2, 40, 64},  {3, 3, 65},
                                {1, 2, 9000}, {4, 1, 1},  {1, 1500, 1}, {2, 130, 27}};
  for (const auto& [outer, places, inner] : shapes) {
    Net net(outer + places + inner);
    const Floats s = net.values(outer * places * inner), m = net.values(s.size());
    std::vector<double> sums(places, 3.0), want(places, 3.0);  // added to what is there
    squares(s.data(), m.data(), 0.5F, outer, places, inner, sums.data());
    for (size_t e = 0; e < s.size(); ++e) {
      const double value = s[e] - 0.5F * m[e];
      want[e / inner % places] += value * value;
    }
    EXPECT_EQ(sums, want) << outer << ' ' << places << ' ' << inner;
  }
}

// A sum of many squares keeps digits that one float accumulator would lose.
TEST_P(Admm, norms_of_long_parameters_are_exact) {
  const uint64_t count = 3 << 20;
  const std::vector<uint64_t> offsets{0, count}, first{0, 1};
  const std::vector<admm::Run> runs{{0, count}};
  Floats theta(count, 3.0F), zero(count), u(count), s(count);
  float* const at = theta.data();
  std::vector<double> norms(4);
  duals({1, offsets.data(), first.data(), runs.data(), &at}, false, false, zero.data(), zero.data(),
        u.data(), s.data(), norms.data());
  EXPECT_EQ(norms[0], 9.0 * static_cast<double>(count));
}

INSTANTIATE_TEST_SUITE_P(Isas, Admm, ::testing::Values(Isa::scalar, Isa::avx2, Isa::avx512));

// One round on any numbers, all results as bytes.
std::vector<uint8_t> round_bits(Isa isa) {
  EXPECT_TRUE(select_isa(isa));
  Net net(7, false);
  const size_t n = net.parameters();
  const Floats z = net.inside(), old = net.values(), scale(n, 0.7F), rest(n, 0.3F), rho(n, 0.1F);
  Floats u = net.values(), s = net.values(), y = net.inside(), z_i(u);
  std::vector<double> norms(6 * n), sums(40);
  const Model model = net.model();
  gather(model, false, u.data(), scale.data());
  squares(s.data(), u.data(), 0.7F, 3, 40, 9, sums.data());
  squares(s.data(), u.data(), 0.7F, 1, 40, 90, sums.data());
  consensus(model, rest.data(), s.data(), z.data(), y.data(), scale.data(), z_i.data());
  duals(model, false, true, old.data(), z_i.data(), u.data(), s.data(), norms.data());
  globals(model, true, old.data(), z.data(), z_i.data(), norms.data() + 4 * n);
  pull(model, false, false, net.pointers.data(), rho.data(), z_i.data(), u.data(), scale.data());
  std::vector<uint8_t> bits;
  const auto add = [&bits](const auto& values) {
    const auto* from = reinterpret_cast<const uint8_t*>(values.data());
    bits.insert(bits.end(), from, from + values.size() * sizeof values[0]);
  };
  for (const Floats* part : {&u, &s, &y, &z_i}) {
    add(*part);
  }
  for (const Floats& theta : net.thetas) {
    add(theta);
  }
  add(norms);
  add(sums);
  EXPECT_TRUE(select_isa(Isa::automatic));
  return bits;
}

TEST(AdmmBits, are_the_same_whatever_the_instruction_set) {
  if (!isa_available(Isa::avx2)) {
    GTEST_SKIP() << "not on this CPU";
  }
  EXPECT_EQ(round_bits(Isa::scalar), round_bits(Isa::avx2));
}

TEST(AdmmRuns, are_the_kept_elements_in_order) {
  std::mt19937_64 rng(11);
  for (int trial = 0; trial < 300; ++trial) {
    const uint64_t dims = rng() % 5;
    std::vector<uint64_t> sizes;
    std::vector<std::vector<uint8_t>> keep(dims);
    std::vector<const uint8_t*> at;
    uint64_t count = 1;
    for (uint64_t d = 0; d < dims; ++d) {
      sizes.push_back(rng() % 9 == 0 ? 0 : 1 + rng() % 6);
      count *= sizes.back();
      for (uint64_t p = 0; p < sizes.back(); ++p) {
        keep[d].push_back(static_cast<uint8_t>(rng() % 2));
      }
      at.push_back(rng() % 3 == 0 ? nullptr : keep[d].data());
    }
    std::vector<admm::Run> want;
    for (uint64_t e = 0; e < count; ++e) {
      uint64_t rest = e;
      bool kept = true;
      for (uint64_t d = dims; d-- > 0; rest /= sizes[d]) {
        kept = kept && (at[d] == nullptr || keep[d][rest % sizes[d]] != 0);
      }
      if (kept && !want.empty() && want.back().end == 100 + e) {
        ++want.back().end;
      } else if (kept) {
        want.push_back({100 + e, 101 + e});
      }
    }
    std::vector<admm::Run> runs(want.size());
    EXPECT_EQ(kept_runs(dims, sizes.data(), at.data(), 100, runs.data(), 0), want.size());
    EXPECT_EQ(kept_runs(dims, sizes.data(), at.data(), 100, runs.data(), runs.size()), want.size());
    for (size_t r = 0; r < want.size(); ++r) {
      ASSERT_EQ(runs[r].begin, want[r].begin);
      ASSERT_EQ(runs[r].end, want[r].end);
    }
  }
}

}  // namespace
}  // namespace prunex::admm
