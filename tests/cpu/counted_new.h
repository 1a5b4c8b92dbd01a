// How many times operator new was called in this program, by any thread.
#pragma once

namespace hyla::cpu_test {
long allocations();
}
