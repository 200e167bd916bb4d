// What CUDA's compiler knows by itself, for sources that g++ compiles: as much of it as the kernels of this crate use. Stands in
// front of every source (compiler.cpp).
#pragma once

#include <cmath>
#include <cstddef>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

struct uint3 {
    unsigned x, y, z;
};

// Where the thread that runs now stands; written by blocks.cpp, as `struct Place` there.
struct EmulatedPlace {
    uint3 thread, block, block_size, grid_size;
    void (*barrier)();
};

// Not zeros, so that it does not lie among what blocks share.
static EmulatedPlace emulated_place = {{0, 0, 0}, {0, 0, 0}, {1, 1, 1}, {1, 1, 1}, nullptr};

extern "C" EmulatedPlace *emulated_place_of_module() { return &emulated_place; }

#define threadIdx emulated_place.thread
#define blockIdx emulated_place.block
#define blockDim emulated_place.block_size
#define gridDim emulated_place.grid_size

#define __device__
#define __align__(bytes) alignas(bytes)

static inline unsigned __float_as_uint(float value) {
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float __uint_as_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
#define __syncthreads() emulated_place.barrier()

// One block runs at a time, so its memory can be that of the program: all that has no values at the start, and sources have
// nothing else of that kind. It is filled with what nobody would use before a block begins.
#define __shared__ static

extern "C" __attribute__((visibility("hidden"))) char __bss_start[];
extern "C" __attribute__((visibility("hidden"))) char _end[];

extern "C" char *emulated_shared_of_module(size_t *bytes) {
    *bytes = (size_t)(_end - __bss_start);
    return __bss_start;
}

// Calls a kernel with arguments that lie at these addresses.
template <class... A, size_t... I>
static inline void emulated_call(void (*kernel)(A...), void **at, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_cv_t<A> *>(at[I])...);
}

template <class... A>
static inline void emulated_call(void (*kernel)(A...), void **at) {
    emulated_call(kernel, at, std::index_sequence_for<A...>());
}

// The sizes of its parameters; ends with 0.
template <class... A>
static inline const size_t *emulated_sizes(void (*)(A...)) {
    static const size_t sizes[] = {sizeof(A)..., 0};
    return sizes;
}

#define EMULATED_KERNEL(name)                                                                          \
    extern "C" void emulated_call_##name(void **at) { emulated_call(name, at); }                       \
    extern "C" const size_t *emulated_sizes_##name() { return emulated_sizes(name); }
