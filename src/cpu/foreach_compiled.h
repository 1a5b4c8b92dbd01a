// foreach_target.h for builds without Highway: the same passes over the source, told apart by
// HYLA_COMPILED_TARGET, with Highway's name for the toggle that header guards look at.
#pragma once

#undef HYLA_COMPILED_ONCE
#define HYLA_COMPILED_ONCE 0
#if defined(__x86_64__)
#define HYLA_COMPILED_TARGET 1
#include HYLA_TARGET_SOURCE
#define HWY_TARGET_TOGGLE
#undef HYLA_COMPILED_TARGET
#define HYLA_COMPILED_TARGET 2
#include HYLA_TARGET_SOURCE
#undef HWY_TARGET_TOGGLE
#undef HYLA_COMPILED_TARGET
#define HYLA_COMPILED_TARGET 3
#include HYLA_TARGET_SOURCE
#define HWY_TARGET_TOGGLE
#undef HYLA_COMPILED_TARGET
#endif
#define HYLA_COMPILED_TARGET 0
#undef HYLA_COMPILED_ONCE
#define HYLA_COMPILED_ONCE 1
