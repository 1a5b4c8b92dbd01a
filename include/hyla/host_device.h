// Marks functions that a CUDA kernel calls too. Nothing without nvcc.
#ifndef HYLA_HOST_DEVICE_H_
#define HYLA_HOST_DEVICE_H_

#if defined(__CUDACC__)
#define HYLA_HOST_DEVICE __host__ __device__
#else
#define HYLA_HOST_DEVICE
#endif

#endif  // HYLA_HOST_DEVICE_H_
