// A process that forks after a call on several threads: the child, which has one of them left, gets
// the same results and does not wait for the others.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "testing/random_problem.h"

namespace hyla::cpu_test {
namespace {

TEST(Fork, TheChildCallsAgain) {
  const testing::Call call =
      random_call(testing::parse_problem("gdn_prefill:lens=130x4,hq=2,hv=4,threads=4"));
  testing::Call first = call;
  testing::run(first);
  const pid_t child = fork();
  if (child == 0) {
    testing::Call again = call;
    testing::run(again);
    bool same = true;
    for (std::size_t i = 0; i < call.buffers.size(); ++i) {
      const testing::Buffer &a = first.buffers[i], &b = again.buffers[i];
      same = same && std::equal(a.data(), a.data() + a.data_bytes(), b.data());
    }
    _exit(same ? 0 : 1);
  }
  ASSERT_GT(child, 0);
  int status = -1;
  for (int i = 0; i < 600 && waitpid(child, &status, WNOHANG) == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (i == 599) kill(child, SIGKILL);
  }
  EXPECT_EQ(status, 0);
  testing::Call last = call;
  testing::run(last);  // here they are still there
}

}  // namespace
}  // namespace hyla::cpu_test
