// SPDX-License-Identifier: Apache-2.0
// A communicator: the ranks of a job, their nodes and leaders, and the calls that run on them, one
// at a time and in order. One thread per communicator watches the control plane and runs
// non-blocking calls.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "plugin/base/config.h"
#include "plugin/collective/context.h"
#include "plugin/collective/exchange.h"
#include "plugin/collective/masked_layout.h"
#include "plugin/collective/point_to_point.h"
#include "plugin/collective/recovery_records.h"
#include "plugin/collective/request.h"
#include "plugin/transport/choose.h"
#include "plugin/transport/transport.h"

namespace prunex::collective {

struct CommOptions {
  Config config;  // rank, size, root, node id, timeout, … already filled in
  std::optional<StoreCallbacks> store;
  std::string name = "default";
};

// A call whose data does not pass through this communicator (device memory): only its header does,
// in the order of all calls, so that its ranks agree about it.
struct Announcement {
  std::optional<Error> finding;       // not a call: this rank cannot go on; everybody is told
  std::optional<std::string> record;  // exchanged once the headers are found equal
  std::optional<std::vector<Offence>> offences;  // likewise: what broke the masks' promise here
  bool again = false;                            // after offences: counted as dense
  // The answers: what the call really uses, as everybody sees it.
  std::shared_ptr<const MaskedLayout> masked;
  bool compact = false, lossless = false, sampled = false, projected = false;
  bool differ = false;                 // ranks have different masks: everybody goes dense
  std::map<int, std::string> records;  // by rank of the scope
};

struct CallSpec {
  const void* send = nullptr;
  void* recv = nullptr;
  uint64_t count = 0;
  DType type = DType::f32;
  Op op = Op::sum;
  Scope scope = Scope::world;
  std::shared_ptr<const MaskedLayout> masked;  // null: dense
  uint64_t extra_digest = 0;
  // Others than the all-reduce: scope world, no masks. count: of the whole buffer, so of all ranks'
  // parts of an all-gather or reduce-scatter. root: of a broadcast, whose send and recv are the
  // same.
  Collective collective = Collective::all_reduce;
  int root = 0;
  std::shared_ptr<Announcement> announced = {};  // null: the data passes through here
};

struct CommStats {
  uint64_t calls = 0, calls_compact = 0, calls_dense = 0;
  uint64_t mismatches = 0, violations = 0;
  uint64_t bytes_logical = 0, bytes_sent = 0, bytes_received = 0, bytes_dense = 0;
  uint64_t dropped_nonzero = 0;
  StageTimes times;
};

struct Request : Completion {
  CallSpec spec;
};

class Comm {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Comm>> create(const CommOptions& options);
  ~Comm();           // waits for calls in flight
  void wait_idle();  // the same, and lives on
  // Ends it on all ranks; from any thread, whatever is under way.
  void abort();

  // Blocking, whatever spec.collective says.
  [[nodiscard]] Result<> call(const CallSpec& spec);
  [[nodiscard]] Result<> all_reduce(const CallSpec& spec) { return call(spec); }
  // on_complete runs on the communicator's thread; it may submit, but not wait.
  [[nodiscard]] std::shared_ptr<Request> submit(
      const CallSpec& spec, std::function<void(const Result<>&)> on_complete = {});
  // A message to or from another rank; beside the order of the collectives.
  [[nodiscard]] std::shared_ptr<Completion> submit(const P2pSpec& spec);

  [[nodiscard]] const topo::World& world() const { return context_.world; }
  [[nodiscard]] int rank() const { return context_.rank; }
  [[nodiscard]] CommStats stats() const;
  // Between nodes: "verbs" or "socket"; "shm" where there is one node.
  [[nodiscard]] const std::string& transport() const { return transport_; }
  [[nodiscard]] const std::string& topology_text() const { return topology_text_; }
  [[nodiscard]] double timeout_s() const { return options_.config.timeout_s; }
  // Called once, from this communicator's thread, when somebody gave the communicator up. Empty:
  // nobody is told any more; returns when no call of the old one is under way.
  void on_abort(std::function<void(const Error&)> listener);
  // What ended it, as far as this rank has been told; from any thread, waits for nobody.
  [[nodiscard]] Result<> state() const;

 private:
  explicit Comm(const CommOptions& options);
  // comm_create.cc
  [[nodiscard]] Result<> build();
  [[nodiscard]] Result<> join();
  [[nodiscard]] Result<> join_node(const std::vector<topo::RankFacts>& facts,
                                   std::vector<int>& strangers);
  [[nodiscard]] Result<> connect_leaders(const std::vector<topo::RankFacts>& facts, bool& rails_ok);
  [[nodiscard]] Result<> open_point_to_point(const topo::RankFacts& own);
  [[nodiscard]] Result<std::vector<std::string>> agree(const Result<>& mine,
                                                       const std::string& record);

  // comm.cc
  struct Effective {  // what a call really uses
    std::shared_ptr<const MaskedLayout> masked;
    bool compact = false, lossless = false, sampled = false, projected = false;
  };
  [[nodiscard]] Result<> run(const CallSpec& spec);
  [[nodiscard]] Result<> run_if_alive(const CallSpec& spec);
  [[nodiscard]] Result<> run_alive(const CallSpec& spec);
  [[nodiscard]] Result<> run_announced(const CallSpec& spec);
  void tell_abort();
  [[nodiscard]] const Effective& effective(const CallSpec& spec);
  // What calls have taught about masks. Ranks that call together must know the same.
  struct Lessons {
    std::unordered_map<uint64_t, uint64_t> broken;   // by parameter: the mask that was not kept
    std::unordered_map<uint64_t, uint64_t> sampled;  // calls by layout and masks
    uint64_t version = 0;                            // of `broken`
  };
  [[nodiscard]] Lessons& lessons(Scope scope) { return lessons_[scope == Scope::node ? 1 : 0]; }
  [[nodiscard]] static uint64_t parameter_key(const Layout& layout, size_t segment);
  [[nodiscard]] std::vector<uint8_t> broken_segments(const CallSpec& spec);
  [[nodiscard]] bool sample_due(const CallSpec& spec, const Effective& e);
  void count(const CallSpec& spec, bool compact);
  [[nodiscard]] uint64_t bytes_between_nodes(uint64_t LeaderLinks::*direction) const;
  void refresh_stats();
  [[nodiscard]] std::shared_ptr<const Plan> plan_for(const PlanRequest& request);
  [[nodiscard]] Result<Outcome> exchange(const CallSpec& spec, const MaskedLayout& masked,
                                         bool audited, bool counted);
  [[nodiscard]] Error die(const Error& finding);
  [[nodiscard]] Error die_of_message(const Error& finding);
  void serve();
  void sleep_until_woken();
  void progress_messages();
  void wake();

  // recovery.cc
  [[nodiscard]] Result<> resolve_difference(const CallSpec& spec, const MaskedLayout& masked);
  [[nodiscard]] Result<> resolve_violation(const CallSpec& spec, const MaskedLayout& masked);
  [[nodiscard]] Result<std::vector<uint8_t>> learn(const CallSpec& spec, const MaskedLayout& masked,
                                                   const std::vector<Offence>& mine);
  [[nodiscard]] Result<std::map<int, std::string>> gather(Scope scope, const std::string& record);
  [[nodiscard]] Result<std::map<int, std::string>> gather_in_node(const std::string& record);
  [[nodiscard]] Result<> await_node(Counter RankBlock::*counter, uint64_t turn);
  void move_base(uint64_t base);

  CommOptions options_;
  std::string topology_text_;
  std::unique_ptr<Control> control_;
  transport::Rdma rdma_;           // of this rank
  std::string transport_ = "shm";  // between nodes; "shm": there is one node
  std::vector<std::unique_ptr<transport::Transport>> networks_;  // by rail, where this rank leads
  std::vector<std::unique_ptr<transport::Listener>> listeners_;  // by rail
  std::unique_ptr<PointToPoint> messages_;                       // null in a world of one
  Context context_;

  // Touched only by whoever set busy_: one call at a time.
  uint64_t turn_ = 0;      // exchanges so far
  uint64_t sequence_ = 0;  // those between nodes; nodes may differ in what they do by themselves
  uint64_t base_ = 0;      // chunks so far
  uint64_t attempted_end_ = 0;     // where the last exchange would have ended
  Scope settling_ = Scope::world;  // whom a difference in the last exchange concerns
  uint64_t mails_ = 0;             // gathers inside the node so far
  std::unordered_map<uint64_t, Effective> effective_;
  std::unordered_map<uint64_t, std::shared_ptr<const Plan>> plans_;
  Lessons lessons_[2];
  std::unordered_set<uint64_t> warned_;
  std::optional<Error> dead_;

  std::mutex listener_mutex_;
  std::function<void(const Error&)> listener_;
  bool told_ = false;

  mutable std::mutex stats_mutex_;
  CommStats stats_;

  std::mutex queue_mutex_;
  std::condition_variable idle_;
  std::deque<std::shared_ptr<Request>> queue_;
  bool busy_ = false, stop_ = false;
  Fd wake_fd_;
  std::vector<pollfd> fds_;  // of the thread
  std::thread thread_;
};

}  // namespace prunex::collective
