// What all kernels have in common. The program puts this text in front of each of the other files.
//
// Rules of these files: arrays are plain f32 in the order N, C, H, W, or N, H, W, C where a kernel says so; no kernel adds floats by atomics, and every sum has an
// order that follows from the shapes and from the launch alone, so a step gives the same bits in every run. A block has THREADS
// threads where it says so. Kernels are `extern "C"`: the program looks for them by name and checks what it passes against
// their parameter lists, which therefore stand as they are read: one line, one space between type and name.

typedef unsigned int u32;
typedef unsigned long long u64;

#define THREADS 256

// What changes from step to step; written by the host in front of each step.
struct Scalars {
    float rate;        // The learning rate.
    float elastic;     // The pull of the centre.
    float correction;  // What Adam's rate is multiplied by.
    u32 unused;
    u64 seed;          // Of what layers draw.
};

// The place of a thread among all of a launch along x.
__device__ inline u32 place() {
    return blockIdx.x * blockDim.x + threadIdx.x;
}

// x as bf16 has it, seven bits of mantissa: the nearest, and of two the even one.
__device__ inline float as_bf16(float x) {
    u32 bits = __float_as_uint(x);
    bool is_number = (bits & 0x7fffffffu) <= 0x7f800000u;
    return is_number ? __uint_as_float((bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u) : x;
}

// C++'s std::max and std::min: what is not a number stays so if it is the first.
__device__ inline float larger(float a, float b) {
    return a < b ? b : a;
}

__device__ inline float smaller(float a, float b) {
    return b < a ? b : a;
}

__device__ inline float rectified(float x, float slope) {
    return larger(x, 0.0f) + slope * smaller(x, 0.0f);
}

// Values that a thread asks for before it uses the first of them: memory is busy only if much of it is asked for.
#define AHEAD 4

// Calls `finish` with what `load` gave for each of `count` values, AHEAD of them on each thread.
template <class Each>
__device__ inline void for_each(int count, Each each) {
    typename Each::Values values[AHEAD];
    u32 first = blockIdx.x * (THREADS * AHEAD) + threadIdx.x;
    for (u32 k = 0; k < AHEAD; k++) {
        if (first + k * THREADS < count) {
            values[k] = each.load(first + k * THREADS);
        }
    }
    for (u32 k = 0; k < AHEAD; k++) {
        if (first + k * THREADS < count) {
            each.finish(first + k * THREADS, values[k]);
        }
    }
}

// Two values.
struct Two {
    float first, second;
};

// The sum over the THREADS threads of a block, on each of them: a tree, the same in every run.
template <class T>
__device__ inline T block_sum(T value, T* shared) {
    u32 thread = threadIdx.x;
    shared[thread] = value;
    __syncthreads();
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        if (thread < half) {
            shared[thread] += shared[thread + half];
        }
        __syncthreads();
    }
    T sum = shared[0];
    __syncthreads();
    return sum;
}
