// Recorded calls: what goes in comes out, and a damaged or hostile file is refused with a message,
// whatever it says. Run under the sanitizers this also shows that nothing is read out of bounds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hyla/error.h>
#include <sys/resource.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "testing/random_problem.h"
#include "testing/recording.h"

namespace hyla::testing {
namespace {

using Bytes = std::vector<std::byte>;
using nlohmann::json;
using ::testing::HasSubstr;

constexpr std::size_t kPrelude = 24;

constexpr const char* kProblems[] = {
    "gdn_decode:b=2,hq=1,hv=2,k=8,v=8",
    "gdn_mtp:lens=2+0+1,hq=1,hv=1,k=8,v=8,mode=all",
    "gdn_prefill:lens=3+1,hq=1,hv=1,k=8,v=8,io=f32",
    "gdn_recurrence:lens=2+3,hq=1,hv=2,k=8,v=8",
    "conv_prefill:lens=3+2,hq=1,hv=1,k=8,v=8",
    "conv_update:b=2,hq=1,hv=1,k=8,v=8",
    "norm_gated_rms:b=2,hv=1,v=8",
    "attention_decode:b=2,hq=2,hk=1,d=8,kvlen=5,page=2,kv=e4m3",
    "attention_merge:b=2,hq=2,d=8",
};

Bytes valid_file(const char* problem) {
  const ProblemSpec spec = parse_problem(problem);
  return encode(record(random_call(spec, CaseOptions::hostile()), problem));
}

std::uint32_t header_bytes(const Bytes& file) {
  std::uint32_t size = 0;
  std::memcpy(&size, file.data() + 12, sizeof size);
  return size;
}

json header_of(const Bytes& file) {
  const char* text = reinterpret_cast<const char*>(file.data()) + kPrelude;
  return json::parse(text, text + header_bytes(file));
}

// The file with another header; the data stays where it is, relative to the header's end.
Bytes with_header(const Bytes& file, const std::string& text) {
  const auto aligned = [](std::size_t size) { return (size + 63) / 64 * 64; };
  const std::size_t old_data = aligned(kPrelude + header_bytes(file));
  Bytes result(aligned(kPrelude + text.size()));
  std::memcpy(result.data(), file.data(), kPrelude);
  const auto size = static_cast<std::uint32_t>(text.size());
  std::memcpy(result.data() + 12, &size, sizeof size);
  std::memcpy(result.data() + kPrelude, text.data(), text.size());
  result.insert(result.end(), file.begin() + static_cast<std::ptrdiff_t>(old_data), file.end());
  seal(result);
  return result;
}

// Taken or refused with an error of ours: anything else ends the test program.
bool taken(const Bytes& file) {
  try {
    const Recording recording = decode(file);
    replay(recording);
    return true;
  } catch (const Error& error) {
    EXPECT_GT(std::string(error.what()).size(), 5u);
    EXPECT_LT(std::string(error.what()).size(), 2000u);
    return false;
  }
}

std::string refusal(const Bytes& file) {
  try {
    replay(decode(file));
  } catch (const Error& error) {
    return error.what();
  }
  return "taken";
}

class Recorded : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Operations, Recorded, ::testing::ValuesIn(kProblems));

TEST_P(Recorded, ComesBackAndReplaysToTheBit) {
  const Bytes file = valid_file(GetParam());
  const Recording recording = decode(file);
  EXPECT_EQ(recording.problem, GetParam());
  const Replayed replayed = replay(recording);
  EXPECT_TRUE(replayed.bit_exact) << replayed.difference;
  EXPECT_EQ(encode(recording), file);
}

TEST_P(Recorded, AChangedOutputIsSeen) {
  Recording recording = decode(valid_file(GetParam()));
  Buffer& out = recording.outputs.front();
  out.data()[0] ^= std::byte{1};
  const Replayed replayed = replay(recording);
  EXPECT_FALSE(replayed.bit_exact);
  EXPECT_THAT(replayed.difference, HasSubstr(out.name() + ": element 0"));
}

TEST_P(Recorded, EveryTruncationIsRefused) {
  const Bytes file = valid_file(GetParam());
  for (std::size_t size = 0; size < file.size(); size += 1 + size / 40) {
    Bytes cut(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_FALSE(taken(cut)) << size;
    seal(cut);
    EXPECT_FALSE(taken(cut)) << size << ", sealed";
  }
}

TEST_P(Recorded, ASingleFlippedBitIsRefused) {
  const Bytes file = valid_file(GetParam());
  const Random random(1, GetParam());
  for (std::int64_t i = 0; i < 300; ++i) {
    Bytes bad = file;
    const std::int64_t bit = random.below(i, static_cast<std::int64_t>(file.size()) * 8);
    bad[static_cast<std::size_t>(bit / 8)] ^= std::byte{1} << (bit % 8);
    EXPECT_FALSE(taken(bad)) << bit;
  }
}

// The digest made right again: what lies behind it must stand on its own.
TEST_P(Recorded, SealedDamageNeverCrashes) {
  const Bytes file = valid_file(GetParam());
  const Random random(2, GetParam());
  const auto header_end = static_cast<std::int64_t>(kPrelude + header_bytes(file));
  for (std::int64_t i = 0; i < 600; ++i) {
    Bytes bad = file;
    const std::int64_t flips = 1 + random.below(4 * i, 4);
    for (std::int64_t f = 0; f < flips; ++f) {
      const std::int64_t draw = i * 8 + f;
      // Half of the damage into the header, which is small.
      const std::int64_t limit =
          random.chance(draw + 100000, 0.5) ? header_end : static_cast<std::int64_t>(file.size());
      const std::int64_t at = random.below(draw + 200000, limit);
      bad[static_cast<std::size_t>(at)] = static_cast<std::byte>(random.bits(draw + 300000));
    }
    seal(bad);
    taken(bad);
  }
}

// Every leaf of the header replaced by something else.
void for_each_leaf(json& node, const std::function<void(json&)>& visit) {
  if (node.is_structured()) {
    for (json& child : node) for_each_leaf(child, visit);
    visit(node);
  } else {
    visit(node);
  }
}

TEST_P(Recorded, EditedHeadersNeverCrash) {
  const Bytes file = valid_file(GetParam());
  const json original = header_of(file);
  const json replacements[] = {nullptr,
                               true,
                               -1,
                               0,
                               1,
                               7,
                               1 << 20,
                               std::int64_t{1} << 40,
                               INT64_MAX,
                               UINT64_MAX,
                               -0.5,
                               1e300,
                               "",
                               "x",
                               "float16",
                               std::string(5000, 'a'),
                               "\x1b[31m",
                               json::array(),
                               json::object(),
                               json::array({1, 2, 3, 4, 5, 6, 7})};
  std::size_t leaves = 0;
  json counted = original;
  for_each_leaf(counted, [&](json&) { ++leaves; });
  const Random random(3, GetParam());
  for (std::size_t target = 0; target < leaves; ++target) {
    for (int pick = 0; pick < 5; ++pick) {
      json edited = original;
      std::size_t at = 0;
      const std::int64_t draw = static_cast<std::int64_t>(target) * 5 + pick;
      const json& replacement = replacements[random.below(draw, std::size(replacements))];
      bool done = false;
      for_each_leaf(edited, [&](json& node) {
        if (!done && at++ == target) {
          node = replacement;
          done = true;
        }
      });
      taken(with_header(file, edited.dump(1, ' ', true)));
    }
  }
}

TEST_P(Recorded, MissingMembersAreRefused) {
  const Bytes file = valid_file(GetParam());
  for (const char* name : {"operation", "problem", "implementation", "threads", "values", "buffers",
                           "tensors", "outputs"}) {
    json edited = header_of(file);
    edited.erase(name);
    EXPECT_THAT(refusal(with_header(file, edited.dump())), HasSubstr(name));
  }
}

struct Edit {
  const char* name;
  void (*edit)(json& header);
  const char* says;
};

class HostileHeader : public ::testing::TestWithParam<Edit> {};

TEST_P(HostileHeader, IsRefusedByName) {
  const Bytes file = valid_file(kProblems[0]);
  json header = header_of(file);
  GetParam().edit(header);
  EXPECT_THAT(refusal(with_header(file, header.dump(1, ' ', true))), HasSubstr(GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(
    Edits, HostileHeader,
    ::testing::Values(
        Edit{"operation", [](json& h) { h["operation"] = "gdn.encode"; }, "a known operation"},
        Edit{"implementation", [](json& h) { h["implementation"] = "../x"; }, "implementation"},
        Edit{"unknown_impl", [](json& h) { h["implementation"] = "nobody"; }, "impl: expected one"},
        Edit{"dtype", [](json& h) { h["buffers"][0]["dtype"] = "float17"; }, "a dtype"},
        Edit{"negative_stride", [](json& h) { h["buffers"][0]["strides"][0] = -8; }, "strides"},
        Edit{"negative_size", [](json& h) { h["buffers"][0]["shape"][0] = -1; }, "shape"},
        Edit{"absurd_size", [](json& h) { h["buffers"][0]["shape"][0] = std::int64_t{1} << 47; },
             "file: expected"},
        Edit{"overflowing_size",
             [](json& h) {
               h["buffers"][0]["shape"] = {1 << 30, 1 << 30, 1 << 30};
               h["buffers"][0]["strides"] = {1, 1, 1};
             },
             "2^48"},
        Edit{"overlapping_elements",
             [](json& h) {
               h["tensors"]["q"]["shape"][0] = std::int64_t{1} << 40;
               h["tensors"]["q"]["strides"][0] = 0;
             },
             "do not overlap"},
        Edit{"bytes", [](json& h) { h["buffers"][0]["bytes"] = 64; }, "to match the shape"},
        Edit{"offset_outside", [](json& h) { h["buffers"][0]["offset"] = 1 << 30; }, "offset"},
        Edit{"overlapping_buffers", [](json& h) { h["buffers"][1]["offset"] = 0; }, "overlap"},
        Edit{"too_many_dims", [](json& h) { h["buffers"][0]["shape"] = {1, 1, 1, 1, 1, 1, 1}; },
             "at most 6"},
        Edit{"tensor_outside", [](json& h) { h["tensors"]["q"]["offset"] = 40; }, "tensor q"},
        Edit{"tensor_buffer", [](json& h) { h["tensors"]["q"]["buffer"] = 99; }, "buffer"},
        Edit{"value_type", [](json& h) { h["values"]["l2norm"] = 1; }, "l2norm"},
        Edit{"value_word", [](json& h) { h["values"]["layout"] = "kk"; }, "layout"},
        Edit{"threads", [](json& h) { h["threads"] = 1 << 20; }, "threads"},
        Edit{"missing_tensor", [](json& h) { h["tensors"].erase("q"); }, "q: expected a tensor"},
        Edit{"outputs", [](json& h) { h["outputs"].erase(0); }, "one output for each"},
        Edit{"buffers", [](json& h) { h["buffers"] = json::array(); }, "file: expected"}),
    [](const auto& edit) { return edit.param.name; });

TEST(Recording, DeepJsonIsRefused) {
  const Bytes file = valid_file(kProblems[0]);
  for (const char* bracket : {"[", "{\"a\":"}) {
    std::string text;
    for (int i = 0; i < 100000; ++i) text += bracket;
    EXPECT_THAT(refusal(with_header(file, text)), HasSubstr("levels"));
  }
}

TEST(Recording, OtherFilesAreRefused) {
  EXPECT_THAT(refusal({}), HasSubstr("a recorded call"));
  EXPECT_THAT(refusal(Bytes(100, std::byte{'x'})), HasSubstr("a recorded call"));
  Bytes file = valid_file(kProblems[0]);
  file[8] = std::byte{9};
  EXPECT_THAT(refusal(file), HasSubstr("version 1"));
  file = valid_file(kProblems[0]);
  std::memset(file.data() + 12, 0xff, 4);
  EXPECT_THAT(refusal(file), HasSubstr("a header inside the file"));
}

// A kilobyte that claims a terabyte must not be believed.
TEST(Recording, NoMemoryIsTakenOnTrust) {
  const Bytes file = valid_file(kProblems[0]);
  json header = header_of(file);
  for (json& buffer : header["buffers"]) {
    buffer["shape"] = {1 << 20, 1 << 20};
    buffer["strides"] = {1 << 20, 1};
    buffer["bytes"] = std::int64_t{1} << 42;
  }
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  EXPECT_FALSE(taken(with_header(file, header.dump())));
  getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 100 << 10);  // kilobytes
}

}  // namespace
}  // namespace hyla::testing
