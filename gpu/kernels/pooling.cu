// Maximum and average over windows, with Caffe's rules for borders (core/layer/pooling.rs).

struct Pool {
    int height, width, out_height, out_width, kernel_h, kernel_w, pad_h, pad_w, stride_h, stride_w;
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

// The windows that see a row: those from `start` to `end`.
__device__ inline Window windows_over(int row, int kernel, int pad, int stride, int windows) {
    int padded = row + pad;
    int start = padded < kernel ? 0 : (padded - kernel) / stride + 1;
    int end = padded / stride + 1;
    return {start, end < windows ? end : windows, 0};
}

extern "C" __global__ void pool_max(const float* x, float* y, float* positions, Pool pool, int count) {
    u32 i = place();
    if (i < count) {
        int column = i % pool.out_width, row = i / pool.out_width % pool.out_height;
        u32 plane = i / pool.out_width / pool.out_height;
        Window rows = window(row, pool.kernel_h, pool.pad_h, pool.stride_h, pool.height);
        Window columns = window(column, pool.kernel_w, pool.pad_w, pool.stride_w, pool.width);
        const float* from = x + (size_t)plane * pool.height * pool.width;
        int best = rows.start * pool.width + columns.start;
        for (int r = rows.start; r < rows.end; r++) {
            for (int c = columns.start; c < columns.end; c++) {
                if (from[r * pool.width + c] > from[best]) {
                    best = r * pool.width + c;
                }
            }
        }
        y[i] = from[best];
        positions[i] = (float)best;
    }
}

// Each value asks all windows that see it, in their order.
extern "C" __global__ void pool_max_backward(const float* dy, const float* positions, float* dx, Pool pool, int count) {
    u32 i = place();
    if (i < count) {
        int column = i % pool.width, row = i / pool.width % pool.height;
        u32 plane = i / pool.width / pool.height;
        Window rows = windows_over(row, pool.kernel_h, pool.pad_h, pool.stride_h, pool.out_height);
        Window columns = windows_over(column, pool.kernel_w, pool.pad_w, pool.stride_w, pool.out_width);
        size_t first = (size_t)plane * pool.out_height * pool.out_width;
        float own = (float)(row * pool.width + column), sum = 0.0f;
        for (int r = rows.start; r < rows.end; r++) {
            for (int c = columns.start; c < columns.end; c++) {
                size_t from = first + r * pool.out_width + c;
                if (positions[from] == own) {
                    sum += dy[from];
                }
            }
        }
        dx[i] = sum;
    }
}

extern "C" __global__ void pool_average(const float* x, float* y, Pool pool, int count) {
    u32 i = place();
    if (i < count) {
        int column = i % pool.out_width, row = i / pool.out_width % pool.out_height;
        u32 plane = i / pool.out_width / pool.out_height;
        Window rows = window(row, pool.kernel_h, pool.pad_h, pool.stride_h, pool.height);
        Window columns = window(column, pool.kernel_w, pool.pad_w, pool.stride_w, pool.width);
        const float* from = x + (size_t)plane * pool.height * pool.width;
        float sum = 0.0f;
        for (int r = rows.start; r < rows.end; r++) {
            for (int c = columns.start; c < columns.end; c++) {
                sum += from[r * pool.width + c];
            }
        }
        y[i] = sum / (float)(rows.counted * columns.counted);
    }
}

extern "C" __global__ void pool_average_backward(const float* dy, float* dx, Pool pool, int count) {
    u32 i = place();
    if (i < count) {
        int column = i % pool.width, row = i / pool.width % pool.height;
        u32 plane = i / pool.width / pool.height;
        Window rows = windows_over(row, pool.kernel_h, pool.pad_h, pool.stride_h, pool.out_height);
        Window columns = windows_over(column, pool.kernel_w, pool.pad_w, pool.stride_w, pool.out_width);
        size_t first = (size_t)plane * pool.out_height * pool.out_width;
        float sum = 0.0f;
        for (int r = rows.start; r < rows.end; r++) {
            int height = window(r, pool.kernel_h, pool.pad_h, pool.stride_h, pool.height).counted;
            for (int c = columns.start; c < columns.end; c++) {
                int width = window(c, pool.kernel_w, pool.pad_w, pool.stride_w, pool.width).counted;
                sum += dy[first + r * pool.out_width + c] / (float)(height * width);
            }
        }
        dx[i] = sum;
    }
}
