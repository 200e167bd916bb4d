// Maximum and average over windows, with Caffe's rules for borders (core/layer/pooling.rs).
//
// Arrays are images × rows × columns × channels: where channels lie in front of pixels every plane counts as an image of one
// channel. A thread treats four channels where they come in fours, and so finds its windows once for them.

struct Pool {
    int channels, height, width, out_height, out_width, kernel_h, kernel_w, pad_h, pad_w, stride_h, stride_w;
};

#define TOGETHER 4

// The channels that a thread treats.
template <int N>
struct Some {
    float of[N];
};
template <>
struct __align__(16) Some<TOGETHER> {
    float of[TOGETHER];
};

// What lies under a window along one axis: rows start..end, of which `counted` count for the average.
struct Window {
    int start, end, counted;
};

__device__ inline Window window(int index, int kernel, int pad, int stride, int extent) {
    int first = index * stride, last = first + kernel;
    last = last < extent + 2 * pad ? last : extent + 2 * pad;
    int start = first - pad, end = last - pad;
    start = start < 0 ? 0 : start > extent ? extent : start;
    end = end < 0 ? 0 : end > extent ? extent : end;
    return {start, end, last > first ? last - first : 0};
}

// Nearly all steps are 1 or 2, and a division is dear.
__device__ inline int over(int value, int stride) {
    return stride == 2 ? value / 2 : stride == 1 ? value : value / stride;
}

// The windows that see a row: those from `start` to `end`.
__device__ inline Window windows_over(int row, int kernel, int pad, int stride, int windows) {
    int padded = row + pad;
    int start = padded < kernel ? 0 : over(padded - kernel, stride) + 1;
    int end = over(padded, stride) + 1;
    return {start, end < windows ? end : windows, 0};
}

// Where the values of a thread lie in an array of so many rows and columns; the arrays before and behind the pooling have the same
// images and channels.
struct Spot {
    u32 row, column, image, channel;
};

__device__ inline Spot spot(u32 i, u32 groups, int together, int height, int width) {
    u32 pixel = i / groups, line = pixel / width;
    return {line % height, pixel % width, line / height, i % groups * together};
}

template <int N>
__device__ inline Some<N> load(const float* from) {
    return *(const Some<N>*)from;
}

template <int N>
__device__ inline void store(float* to, const Some<N>& values) {
    *(Some<N>*)to = values;
}

template <int N>
__device__ inline void largest(const float* x, float* y, float* positions, const Pool& pool, u32 i) {
    Spot at = spot(i, pool.channels / N, N, pool.out_height, pool.out_width);
    Window rows = window(at.row, pool.kernel_h, pool.pad_h, pool.stride_h, pool.height);
    Window columns = window(at.column, pool.kernel_w, pool.pad_w, pool.stride_w, pool.width);
    const float* from = x + (size_t)at.image * pool.height * pool.width * pool.channels + at.channel;
    int first = rows.start * pool.width + columns.start;
    Some<N> best = load<N>(from + (size_t)first * pool.channels), where;
    for (int k = 0; k < N; k++) {
        where.of[k] = (float)first;
    }
    for (int r = rows.start; r < rows.end; r++) {
        for (int c = columns.start; c < columns.end; c++) {
            int pixel = r * pool.width + c;
            Some<N> values = load<N>(from + (size_t)pixel * pool.channels);
            for (int k = 0; k < N; k++) {
                if (values.of[k] > best.of[k]) {
                    best.of[k] = values.of[k];
                    where.of[k] = (float)pixel;
                }
            }
        }
    }
    store<N>(y + (size_t)i * N, best);
    store<N>(positions + (size_t)i * N, where);
}

extern "C" __global__ void pool_max(const float* x, float* y, float* positions, Pool pool, int count) {
    u32 i = place();
    if (i < count) {
        if (pool.channels % TOGETHER == 0) {
            largest<TOGETHER>(x, y, positions, pool, i);
        } else {
            largest<1>(x, y, positions, pool, i);
        }
    }
}

// Each value asks all windows that see it, in their order.
template <int N>
__device__ inline void largest_backward(const float* dy, const float* positions, float* dx, const Pool& pool, u32 i) {
    Spot at = spot(i, pool.channels / N, N, pool.height, pool.width);
    Window rows = windows_over(at.row, pool.kernel_h, pool.pad_h, pool.stride_h, pool.out_height);
    Window columns = windows_over(at.column, pool.kernel_w, pool.pad_w, pool.stride_w, pool.out_width);
    size_t first = (size_t)at.image * pool.out_height * pool.out_width;
    float own = (float)(at.row * pool.width + at.column);
    Some<N> sums = {};
    for (int r = rows.start; r < rows.end; r++) {
        for (int c = columns.start; c < columns.end; c++) {
            size_t from = (first + r * pool.out_width + c) * pool.channels + at.channel;
            Some<N> where = load<N>(positions + from), values = load<N>(dy + from);
            for (int k = 0; k < N; k++) {
                if (where.of[k] == own) {
                    sums.of[k] += values.of[k];
                }
            }
        }
    }
    store<N>(dx + (size_t)i * N, sums);
}

extern "C" __global__ void pool_max_backward(const float* dy, const float* positions, float* dx, Pool pool, int count) {
    u32 i = place();
    if (i < count) {
        if (pool.channels % TOGETHER == 0) {
            largest_backward<TOGETHER>(dy, positions, dx, pool, i);
        } else {
            largest_backward<1>(dy, positions, dx, pool, i);
        }
    }
}

template <int N>
__device__ inline void average(const float* x, float* y, const Pool& pool, u32 i) {
    Spot at = spot(i, pool.channels / N, N, pool.out_height, pool.out_width);
    Window rows = window(at.row, pool.kernel_h, pool.pad_h, pool.stride_h, pool.height);
    Window columns = window(at.column, pool.kernel_w, pool.pad_w, pool.stride_w, pool.width);
    const float* from = x + (size_t)at.image * pool.height * pool.width * pool.channels + at.channel;
    Some<N> sums = {};
    for (int r = rows.start; r < rows.end; r++) {
        for (int c = columns.start; c < columns.end; c++) {
            Some<N> values = load<N>(from + (size_t)(r * pool.width + c) * pool.channels);
            for (int k = 0; k < N; k++) {
                sums.of[k] += values.of[k];
            }
        }
    }
    for (int k = 0; k < N; k++) {
        sums.of[k] /= (float)(rows.counted * columns.counted);
    }
    store<N>(y + (size_t)i * N, sums);
}

extern "C" __global__ void pool_average(const float* x, float* y, Pool pool, int count) {
    u32 i = place();
    if (i < count) {
        if (pool.channels % TOGETHER == 0) {
            average<TOGETHER>(x, y, pool, i);
        } else {
            average<1>(x, y, pool, i);
        }
    }
}

template <int N>
__device__ inline void average_backward(const float* dy, float* dx, const Pool& pool, u32 i) {
    Spot at = spot(i, pool.channels / N, N, pool.height, pool.width);
    Window rows = windows_over(at.row, pool.kernel_h, pool.pad_h, pool.stride_h, pool.out_height);
    Window columns = windows_over(at.column, pool.kernel_w, pool.pad_w, pool.stride_w, pool.out_width);
    size_t first = (size_t)at.image * pool.out_height * pool.out_width;
    Some<N> sums = {};
    for (int r = rows.start; r < rows.end; r++) {
        int height = window(r, pool.kernel_h, pool.pad_h, pool.stride_h, pool.height).counted;
        for (int c = columns.start; c < columns.end; c++) {
            int width = window(c, pool.kernel_w, pool.pad_w, pool.stride_w, pool.width).counted;
            Some<N> values = load<N>(dy + (first + r * pool.out_width + c) * pool.channels + at.channel);
            for (int k = 0; k < N; k++) {
                sums.of[k] += values.of[k] / (float)(height * width);
            }
        }
    }
    store<N>(dx + (size_t)i * N, sums);
}

extern "C" __global__ void pool_average_backward(const float* dy, float* dx, Pool pool, int count) {
    u32 i = place();
    if (i < count) {
        if (pool.channels % TOGETHER == 0) {
            average_backward<TOGETHER>(dy, dx, pool, i);
        } else {
            average_backward<1>(dy, dx, pool, i);
        }
    }
}
