// hyla's own threads: every part once, whoever comes, sleeps, forks or is busy meanwhile.
#include <gtest/gtest.h>
#include <hyla/error.h>
#include <hyla/thread_pool.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <thread>
#include <vector>

namespace hyla::cpu_test {
namespace {

template <class Body>
void run(ThreadPool& pool, int count, const Body& body) {
  ThreadPool::run(
      &pool, count, [](void* task, int i) { (*static_cast<const Body*>(task))(i); },
      const_cast<Body*>(&body));
}

// Is every part called once, and all of them before it returns?
bool all_once(ThreadPool& pool, int count) {
  std::vector<std::atomic<int>> calls(static_cast<std::size_t>(count));
  run(pool, count, [&](int i) { calls[static_cast<std::size_t>(i)].fetch_add(1); });
  for (const std::atomic<int>& number : calls) {
    if (number.load() != 1) return false;
  }
  return true;
}

TEST(ThreadPool, CallsEveryPartOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (int round = 0; round < 200; ++round) {
      for (const int count : {0, 1, 2, 3, 7, 100}) {
        ASSERT_TRUE(all_once(pool, count)) << count << " parts on " << threads;
      }
    }
  }
}

TEST(ThreadPool, ThreadsThatSleepWakeUp) {
  ThreadPool pool(4);
  ASSERT_EQ(pool.threads(), 4);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    // The parts end only when they have met: three of them are on threads that slept.
    std::latch met(4);
    run(pool, 4, [&](int) { met.arrive_and_wait(); });
  }
}

// Far more threads than cores, so that the end finds some of them anywhere between two instructions.
TEST(ThreadPool, EndsWhileItsThreadsLookForACall) {
  for (int round = 0; round < 300; ++round) {
    ThreadPool pool(16);
    ASSERT_TRUE(all_once(pool, 16));
  }
}

TEST(ThreadPool, ACallInsideAnotherOneAndOnesBesideItWorkAlone) {
  ThreadPool pool(3);
  std::atomic<bool> good{true};
  run(pool, 6, [&](int) {
    if (!all_once(pool, 5)) good = false;
  });
  EXPECT_TRUE(good);

  // While a call of another thread cannot go on, this one does.
  std::latch begun(1), go_on(1);
  std::thread other([&] {
    run(pool, 2, [&](int i) {
      if (i == 0) {
        begun.count_down();
        go_on.wait();
      }
    });
  });
  begun.wait();
  EXPECT_TRUE(all_once(pool, 50));
  go_on.count_down();
  other.join();
}

TEST(ThreadPool, CallersDoNotDisturbEachOther) {
  ThreadPool pool(3);
  std::atomic<int> bad{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 300; ++round) bad += all_once(pool, 1 + round % 9) ? 0 : 1;
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(bad, 0);
}

TEST(ThreadPool, AChildWorksAloneAndEnds) {
  auto pool = std::make_unique<ThreadPool>(3);
  EXPECT_TRUE(all_once(*pool, 9));
  const pid_t child = fork();
  if (child == 0) {
    const bool good = all_once(*pool, 9);
    pool.reset();  // must not wait for threads that are not there
    _exit(good ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(all_once(*pool, 9));
}

TEST(ThreadPool, RefusesNumbersThatAreNone) {
  for (const int threads : {-1, ThreadPool::kMostThreads + 1}) {
    try {
      ThreadPool pool(threads);
      ADD_FAILURE() << threads;
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.argument(), "threads");
      EXPECT_EQ(error.got(), std::to_string(threads));
    }
  }
  EXPECT_GE(ThreadPool().threads(), 1);
}

}  // namespace
}  // namespace hyla::cpu_test
