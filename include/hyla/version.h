// The version of hyla. CMake, pkg-config and the tool read these three numbers from here.
#ifndef HYLA_VERSION_H_
#define HYLA_VERSION_H_

#define HYLA_VERSION_MAJOR 0
#define HYLA_VERSION_MINOR 1
#define HYLA_VERSION_PATCH 0

#endif  // HYLA_VERSION_H_
