// Symbol visibility: everything is hidden except what carries HYLA_API.
#ifndef HYLA_EXPORT_H_
#define HYLA_EXPORT_H_

#if defined(__GNUC__)
#define HYLA_API __attribute__((visibility("default")))
#else
#define HYLA_API
#endif

#endif  // HYLA_EXPORT_H_
