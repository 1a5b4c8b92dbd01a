// Times of other libraries, measured elsewhere and kept in bench/peers, to print beside ours.
#pragma once

#include <string>
#include <vector>

#include "testing/problem_string.h"

namespace hyla::tool {

struct Peer {
  testing::ProblemSpec spec;
  std::string name;
  double us = 0;
};

// {"rows": [{"problem", "peer", "us"}]}. Throws InvalidArgument("--peers", ...) for anything else.
// An empty path: no peers.
std::vector<Peer> load_peers(const std::string& path);

// Those that did the same work, fastest first. How gates and norms are handed over may differ: it
// moves no bytes to speak of.
std::vector<Peer> peers_of(const std::vector<Peer>& peers, const testing::ProblemSpec& spec);

}  // namespace hyla::tool
