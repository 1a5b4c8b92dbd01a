#include "peers.h"

#include <hyla/error.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

namespace hyla::tool {
namespace {

// A problem without what does not change the work.
testing::ProblemSpec work_only(testing::ProblemSpec spec) {
  const testing::ProblemSpec plain = testing::defaults(spec.operation);
  spec.gate = plain.gate;
  spec.beta = plain.beta;
  spec.norm = plain.norm;
  spec.device = plain.device;
  spec.impl = plain.impl;
  spec.threads = plain.threads;
  spec.seed = plain.seed;
  spec.slots = plain.slots;
  spec.pdl = plain.pdl;
  // Prefill touches a state once a sequence.
  if (spec.operation == testing::Operation::kGdnPrefill) spec.layout = plain.layout;
  return spec;
}

}  // namespace

std::vector<Peer> load_peers(const std::string& path) {
  std::vector<Peer> peers;
  if (path.empty()) return peers;
  std::ifstream file(path);
  if (!file) throw InvalidArgument("--peers", "a file that can be read", path);
  try {
    const nlohmann::json document = nlohmann::json::parse(file);
    for (const nlohmann::json& row : document.at("rows")) {
      const auto problem = row.at("problem").get<std::string>();
      peers.push_back({work_only(testing::parse_problem(problem)),
                       row.at("peer").get<std::string>(), row.at("us").get<double>()});
    }
  } catch (const nlohmann::json::exception&) {
    throw InvalidArgument("--peers", "JSON with rows of problem, peer and us", path);
  }
  std::sort(peers.begin(), peers.end(), [](const Peer& a, const Peer& b) { return a.us < b.us; });
  return peers;
}

std::vector<Peer> peers_of(const std::vector<Peer>& peers, const testing::ProblemSpec& spec) {
  const testing::ProblemSpec wanted = work_only(spec);
  std::vector<Peer> found;
  std::copy_if(peers.begin(), peers.end(), std::back_inserter(found),
               [&](const Peer& peer) { return peer.spec == wanted; });
  return found;
}

}  // namespace hyla::tool
