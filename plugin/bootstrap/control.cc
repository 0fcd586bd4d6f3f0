// SPDX-License-Identifier: Apache-2.0
#include "plugin/bootstrap/control.h"

#include "plugin/base/interfaces.h"
#include "plugin/bootstrap/meeting.h"
#include "plugin/bootstrap/star.h"

namespace prunex {
namespace {

Result<> check(const ControlOptions& o) {
  if (o.size < 1 || o.rank < 0 || o.rank >= o.size) {
    return fail(Code::invalid_argument,
                strf("rank %d of %d: no such rank. Pass rank and size, set PRUNEX_RANK and "
                     "PRUNEX_WORLD_SIZE, or start with torchrun, mpirun or srun",
                     o.rank, o.size));
  }
  if (o.store_prefix.size() > wire::kMaxName) {
    return fail(Code::invalid_argument, strf("a communicator's name of %zu bytes; at most %zu",
                                             o.store_prefix.size(), wire::kMaxName));
  }
  if (o.store ? !o.store->set || !o.store->get : false) {
    return fail(Code::invalid_argument, "a store needs both set and get");
  }
  if (o.size > 1 && !o.store && o.root.empty()) {
    return fail(Code::config,
                "no way to find rank 0: set PRUNEX_ROOT=host:port on all ranks, or pass a store");
  }
  if (o.size > 1 && !o.socket_ifname.empty()) {
    // Whoever names an interface must hear at once that there is none of that name.
    const auto have = list_interfaces();
    if (const auto chosen = have ? choose_interfaces(*have, o.socket_ifname) : have; !chosen) {
      return tl::unexpected(chosen.error());
    }
  }
  return {};
}

Result<std::unique_ptr<Star>> meet(const ControlOptions& options, const Deadline& deadline) {
  if (options.size == 1) {
    return make_root_star(1, std::vector<std::unique_ptr<Link>>(1));
  }
  if (options.rank == 0) {
    auto links = meet_as_root(options, deadline);
    if (!links) {
      return tl::unexpected(links.error());
    }
    return make_root_star(options.size, std::move(*links));
  }
  auto link = meet_as_member(options, deadline);
  if (!link) {
    return tl::unexpected(link.error());
  }
  return make_member_star(options.rank, options.size, std::move(*link));
}

}  // namespace

Result<std::unique_ptr<Control>> Control::open(const ControlOptions& options) {
  const Deadline deadline = Deadline::after(options.timeout_s);
  if (const auto ok = check(options); !ok) {
    return tl::unexpected(ok.error());
  }
  auto star = meet(options, deadline);
  if (!star) {
    return tl::unexpected(star.error());
  }
  if (const auto ok = (*star)->watch_links(); !ok) {
    return tl::unexpected(ok.error());
  }
  return std::unique_ptr<Control>(std::move(*star));
}

}  // namespace prunex
