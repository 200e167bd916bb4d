// Matrix products, and convolutions as products whose second matrix is never made (implicit GEMM).
//
// A block of THREADS threads makes a tile of TILE × TILE values, each thread 4 × 4 of them, DEPTH terms at a time. Where a
// product has few tiles and long sums, `splits` blocks share the sums of a tile and leave parts side by side, which `sum_parts`
// adds up in their order.

#define TILE 64
#define DEPTH 16

// The part of the terms `from..to` of a block's sums.
struct Terms {
    int from, to;
};

__device__ inline Terms share_of(int depth, int split, int splits) {
    int each = (depth + splits - 1) / splits;
    each = (each + DEPTH - 1) / DEPTH * DEPTH;
    int from = split * each;
    return {from < depth ? from : depth, from + each < depth ? from + each : depth};
}

// C[m, n] = Σ A(m, k) B(k, n) for the tile at (blockIdx.y, blockIdx.x). `a.at(m, k)` is a term of the first matrix, `b.column(n)`
// prepares a thread's column and `b.at(k)` is a term in it, and `c.put(m, n, sum)` takes the result. With `bf16` both are rounded
// to it before they are multiplied.
template <class A, class B, class C>
__device__ inline void multiply(int rows, int columns, int bf16, Terms terms, const A& a, B& b, const C& c) {
    __shared__ float left[DEPTH][TILE + 4];
    __shared__ float right[DEPTH][TILE];
    int thread = threadIdx.x;
    int first_row = blockIdx.y * TILE, first_column = blockIdx.x * TILE;
    int load_k = thread % DEPTH, load_m = thread / DEPTH;
    int load_n = thread % TILE, load_row = thread / TILE;
    int own_m = thread / 16 * 4, own_n = thread % 16 * 4;
    bool has_column = first_column + load_n < columns;
    if (has_column) {
        b.column(first_column + load_n);
    }
    float sums[4][4] = {};
    for (int k0 = terms.from; k0 < terms.to; k0 += DEPTH) {
        for (int i = 0; i < TILE; i += THREADS / DEPTH) {
            int m = first_row + load_m + i, k = k0 + load_k;
            float term = m < rows && k < terms.to ? a.at(m, k) : 0.0f;
            left[load_k][load_m + i] = bf16 ? as_bf16(term) : term;
        }
        for (int i = 0; i < DEPTH; i += THREADS / TILE) {
            int k = k0 + load_row + i;
            float term = has_column && k < terms.to ? b.at(k) : 0.0f;
            right[load_row + i][load_n] = bf16 ? as_bf16(term) : term;
        }
        __syncthreads();
        for (int k = 0; k < DEPTH; k++) {
            float x[4], y[4];
            for (int i = 0; i < 4; i++) {
                x[i] = left[k][own_m + i];
                y[i] = right[k][own_n + i];
            }
            for (int i = 0; i < 4; i++) {
                for (int j = 0; j < 4; j++) {
                    sums[i][j] += x[i] * y[j];
                }
            }
        }
        __syncthreads();
    }
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < 4; j++) {
            int m = first_row + own_m + i, n = first_column + own_n + j;
            if (m < rows && n < columns) {
                c.put(m, n, sums[i][j]);
            }
        }
    }
}

// A matrix in memory: value (m, n) lies at m × row + n × column.
struct Strided {
    const float* values;
    size_t row, step;
    size_t own;
    __device__ float at(int m, int k) const { return values[m * row + k * step]; }
    __device__ void column(int n) { own = n * step; }
    __device__ float at(int k) const { return values[k * row + own]; }
};

struct Plain {
    float* values;
    const float* bias;
    size_t row;
    __device__ void put(int m, int n, float sum) const { values[m * row + n] = bias ? sum + bias[n] : sum; }
};

struct Product {
    int rows, columns, depth, a_row, a_column, b_row, b_column, splits, bf16;
};

// C (rows × columns) = A B, and a bias for each column where the sums are not shared; otherwise C is as many parts as splits.
extern "C" __global__ void product(const float* a, const float* b, const float* bias, float* c, Product p) {
    Strided left = {a, (size_t)p.a_row, (size_t)p.a_column, 0};
    Strided right = {b, (size_t)p.b_row, (size_t)p.b_column, 0};
    Plain out = {c + (size_t)blockIdx.z * p.rows * p.columns, bias, (size_t)p.columns};
    multiply(p.rows, p.columns, p.bf16, share_of(p.depth, blockIdx.z, p.splits), left, right, out);
}

// out = Σ parts, and a bias for each of `columns` columns, if there is one.
extern "C" __global__ void sum_parts(const float* parts, const float* bias, float* out, int splits, int columns, int count) {
    u32 i = place();
    if (i < count) {
        float sum = 0.0f;
        for (int split = 0; split < splits; split++) {
            sum += parts[(size_t)split * count + i];
        }
        out[i] = bias ? sum + bias[i % columns] : sum;
    }
}

struct Convolution {
    int images, channels, height, width, outputs, out_height, out_width;
    int kernel_h, kernel_w, pad_h, pad_w, stride_h, stride_w, dilation_h, dilation_w, group, splits, bf16;
    __device__ int channels_of_group() const { return channels / group; }
    __device__ int outputs_of_group() const { return outputs / group; }
    __device__ int taps() const { return kernel_h * kernel_w; }
};

// The weights of a group: rows are outputs, and terms are channel, row and column of the kernel.
struct Weights {
    const float* values;
    int depth;
    __device__ float at(int m, int k) const { return values[(size_t)m * depth + k]; }
};

// Columns are places of Y over all images, terms the taps under them.
struct Unfolded {
    const float* x;
    const Convolution& g;
    int first_channel, image, row, column_;
    __device__ void column(int n) {
        int out = g.out_height * g.out_width;
        image = n / out;
        row = n % out / g.out_width * g.stride_h - g.pad_h;
        column_ = n % g.out_width * g.stride_w - g.pad_w;
    }
    __device__ float at(int k) const {
        int channel = k / g.taps(), tap = k % g.taps();
        int r = row + tap / g.kernel_w * g.dilation_h, c = column_ + tap % g.kernel_w * g.dilation_w;
        bool inside = r >= 0 && r < g.height && c >= 0 && c < g.width;
        return inside ? x[(((size_t)image * g.channels + first_channel + channel) * g.height + r) * g.width + c] : 0.0f;
    }
};

// Rows are outputs of a group, columns places over all images.
struct Images {
    float* y;
    const float* bias;
    int first, all, plane, relu;
    __device__ void put(int m, int n, float sum) const {
        float value = bias ? sum + bias[first + m] : sum;
        y[((size_t)(n / plane) * all + first + m) * plane + n % plane] = relu ? rectified(value, 0.0f) : value;
    }
};

// blockIdx.z is the group.
extern "C" __global__ void convolution(const float* x, const float* w, const float* bias, float* y, int relu, Convolution g) {
    int group = blockIdx.z, rows = g.outputs_of_group(), depth = g.channels_of_group() * g.taps();
    int plane = g.out_height * g.out_width;
    Weights left = {w + (size_t)group * rows * depth, depth};
    Unfolded right = {x, g, group * g.channels_of_group(), 0, 0, 0};
    Images out = {y, bias, group * rows, g.outputs, plane, relu};
    multiply(rows, g.images * plane, g.bf16, {0, depth}, left, right, out);
}

// The weights of a group turned: rows are channels, and terms are output, row and column of the kernel.
struct Turned {
    const float* values;
    int channels, taps;
    __device__ float at(int m, int k) const {
        return values[((size_t)(k / taps) * channels + m) * taps + k % taps];
    }
};

// Columns are places of X over all images, terms the places of Y that see them through a tap.
struct Seen {
    const float* dy;
    const Convolution& g;
    int first_output, image, row, column_;
    __device__ void column(int n) {
        int plane = g.height * g.width;
        image = n / plane;
        row = n % plane / g.width + g.pad_h;
        column_ = n % g.width + g.pad_w;
    }
    __device__ float at(int k) const {
        int output = k / g.taps(), tap = k % g.taps();
        int r = row - tap / g.kernel_w * g.dilation_h, c = column_ - tap % g.kernel_w * g.dilation_w;
        if (r < 0 || c < 0 || r % g.stride_h != 0 || c % g.stride_w != 0) {
            return 0.0f;
        }
        r /= g.stride_h;
        c /= g.stride_w;
        bool inside = r < g.out_height && c < g.out_width;
        return inside ? dy[(((size_t)image * g.outputs + first_output + output) * g.out_height + r) * g.out_width + c] : 0.0f;
    }
};

extern "C" __global__ void convolution_grad_activation(const float* dy, const float* w, float* dx, Convolution g) {
    int group = blockIdx.z, rows = g.channels_of_group(), outputs = g.outputs_of_group();
    int plane = g.height * g.width;
    Turned left = {w + (size_t)group * outputs * rows * g.taps(), rows, g.taps()};
    Seen right = {dy, g, group * outputs, 0, 0, 0};
    Images out = {dx, nullptr, group * rows, g.channels, plane, 0};
    multiply(rows, g.images * plane, g.bf16, {0, outputs * g.taps()}, left, right, out);
}

// The gradients of a group's outputs: rows are outputs, terms places over all images.
struct Gradients {
    const float* dy;
    int first, all, plane;
    __device__ float at(int m, int k) const {
        return dy[((size_t)(k / plane) * all + first + m) * plane + k % plane];
    }
};

// Columns are channel, row and column of the kernel, terms the places of Y over all images.
struct Under {
    const float* x;
    const Convolution& g;
    int first_channel, channel, row, column_;
    __device__ void column(int n) {
        int tap = n % g.taps();
        channel = first_channel + n / g.taps();
        row = tap / g.kernel_w * g.dilation_h - g.pad_h;
        column_ = tap % g.kernel_w * g.dilation_w - g.pad_w;
    }
    __device__ float at(int k) const {
        int out = g.out_height * g.out_width, image = k / out;
        int r = k % out / g.out_width * g.stride_h + row, c = k % g.out_width * g.stride_w + column_;
        bool inside = r >= 0 && r < g.height && c >= 0 && c < g.width;
        return inside ? x[(((size_t)image * g.channels + channel) * g.height + r) * g.width + c] : 0.0f;
    }
};

// blockIdx.z is the group and the split; part `split` of the gradient holds all groups.
extern "C" __global__ void convolution_grad_weight(const float* dy, const float* x, float* dw, Convolution g) {
    int group = blockIdx.z / g.splits, split = blockIdx.z % g.splits;
    int rows = g.outputs_of_group(), columns = g.channels_of_group() * g.taps();
    int plane = g.out_height * g.out_width;
    Gradients left = {dy, group * rows, g.outputs, plane};
    Under right = {x, g, group * g.channels_of_group(), 0, 0, 0};
    Plain out = {dw + ((size_t)split * g.group + group) * rows * columns, nullptr, (size_t)columns};
    multiply(rows, columns, g.bf16, share_of(g.images * plane, split, g.splits), left, right, out);
}
