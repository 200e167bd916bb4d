// The calls of cuDNN that gpu/driver/dnn.rs makes, as its documentation describes them. A library of its own, so that programs can
// be tried with it and without.

#include "library.h"

#include <algorithm>
#include <iterator>

namespace {

using Lock = std::lock_guard<std::recursive_mutex>;
#define LOCKED Lock lock(everything().lock)

// cuDNN's own codes, from version 9 on.
enum Status { DONE = 0, NO_HANDLE = 1001, BAD_PARAM = 2000, EXECUTION_FAILED = 5000, NOT_SUPPORTED = 3000 };
enum Numbers { FLOATS = 0, BFLOAT16 = 9 };
enum Math { DEFAULT_MATH = 0, TENSOR_OP_MATH = 1, FMA_MATH = 3 };
constexpr int NCHW = 0, NHWC = 1, CROSS_CORRELATION = 1;

int refuse(int status, const std::string &what) { return wrong(status, "cuDNN: " + what); }

struct Handle {
    bool alive = true;
    Stream *stream = nullptr;
};

// A blob or a weight: what it holds, in which order, and four extents, which are those of N, C, H, W in any order.
struct Tensor {
    bool alive = true;
    int numbers = -1, format = NCHW;
    int extents[4] = {0, 0, 0, 0};

    size_t count() const {
        size_t all = 1;
        for (int extent : extents) {
            all *= size_t(extent);
        }
        return all;
    }
    size_t bytes() const { return count() * (numbers == FLOATS ? 4 : 2); }
    bool is_sound() const { return alive && (numbers == FLOATS || numbers == BFLOAT16) && bytes() > 0; }
};

// From one image, channel, row or column to the next.
struct Steps {
    size_t image, channel, row, column;

    explicit Steps(const Tensor &of) {
        size_t channels = size_t(of.extents[1]), rows = size_t(of.extents[2]), columns = size_t(of.extents[3]);
        bool together = of.format == NHWC;
        column = together ? channels : 1;
        row = columns * column;
        channel = together ? 1 : rows * columns;
        image = channels * rows * columns;
    }
    size_t place(int a, int b, int c, int d) const {
        return size_t(a) * image + size_t(b) * channel + size_t(c) * row + size_t(d) * column;
    }
};

struct Convolution {
    bool alive = true;
    int pad[2], stride[2], dilation[2];
    int group = 1, math = DEFAULT_MATH;
};

int set(Tensor *tensor, int numbers, int format, const int (&extents)[4]) {
    tensor->numbers = numbers;
    tensor->format = format;
    memcpy(tensor->extents, extents, sizeof extents);
    return (format == NCHW || format == NHWC) && tensor->is_sound() ? DONE : refuse(BAD_PARAM, "a shape");
}

// What the library answers when it is asked for algorithms.
struct Answer {
    int algorithm, status;
    float milliseconds;
    size_t memory;
    int is_deterministic, math;
    int reserved[3];
};

enum Direction { FORWARD, DATA, FILTER };

// Algorithms: one whose bits differ from run to run, one that takes too much workspace, one that cannot do it, and one to be taken.
enum Algorithm { GOOD = 0, BY_CHANCE = 1, LARGE = 2, UNABLE = 3 };
constexpr size_t TOO_MUCH = size_t(1) << 40;

// cuDNN's WINOGRAD_NONFUSED of a direction.
int transforms_of(Direction direction) { return direction == FORWARD ? 7 : 5; }

// Whether transforms of a kernel lose so many digits that they are not to be taken in f32.
bool are_coarse(const Tensor *w) { return w->extents[2] > 3 || w->extents[3] > 3; }

bool is_sound(const Tensor *x, const Tensor *w, const Tensor *y, const Convolution *c) {
    if (!x->is_sound() || !w->is_sound() || !y->is_sound() || !c->alive || x->numbers != w->numbers || x->numbers != y->numbers ||
        x->format != w->format || x->format != y->format) {
        return false;
    }
    bool fits = c->group > 0 && x->extents[0] == y->extents[0] && x->extents[1] == w->extents[1] * c->group &&
                y->extents[1] == w->extents[0] && w->extents[0] % c->group == 0;
    for (int axis = 0; axis < 2; axis++) {
        int window = c->dilation[axis] * (w->extents[2 + axis] - 1) + 1;
        int room = x->extents[2 + axis] + 2 * c->pad[axis] - window;
        fits = fits && c->stride[axis] > 0 && room >= 0 && y->extents[2 + axis] == room / c->stride[axis] + 1;
    }
    return fits;
}

// As much as all images take, so that it differs from chunk to chunk.
size_t workspace_of(const Tensor *x, int algorithm) { return algorithm == LARGE ? TOO_MUCH : x->bytes() + 4; }

int ask_workspace(const Tensor *x, const Tensor *w, const Tensor *y, const Convolution *c, int algorithm, size_t *bytes) {
    LOCKED;
    if (!is_sound(x, w, y, c)) {
        return refuse(BAD_PARAM, "shapes that do not fit each other");
    }
    if (algorithm == UNABLE) {
        return NOT_SUPPORTED;
    }
    *bytes = workspace_of(x, algorithm);
    return DONE;
}

int ask_algorithms(Handle *handle, Direction direction, const Tensor *x, const Tensor *w, const Tensor *y, const Convolution *c,
                   int most, int *count, Answer *answers) {
    LOCKED;
    if (!handle->alive || !is_sound(x, w, y, c)) {
        return refuse(BAD_PARAM, "shapes that do not fit each other");
    }
    // As for some shapes of the real one: a window that lies in the padding alone.
    if (c->pad[0] >= c->dilation[0] * (w->extents[2] - 1) + 1) {
        return NOT_SUPPORTED;
    }
    // What they say of their memory is that of another precision. The good one multiplies by units that it has to be told.
    int units = c->math == FMA_MATH ? FMA_MATH : TENSOR_OP_MATH;
    const Answer all[] = {
        {BY_CHANCE, DONE, 1, 0, 0, c->math, {}},
        {LARGE, DONE, 2, 0, 1, c->math, {}},
        {UNABLE, NOT_SUPPORTED, -1, 0, 1, c->math, {}},
        {transforms_of(direction), DONE, 3, 0, 1, units, {}},
        {GOOD, DONE, 4, 0, 1, units, {}},
    };
    *count = std::min(most, int(std::size(all)));
    std::copy(all, all + *count, answers);
    return DONE;
}

// One array while it is used.
struct Array {
    char *start;
    int numbers;
    Factors factors;

    float read(size_t at) const {
        float value;
        if (numbers == FLOATS) {
            memcpy(&value, start + 4 * at, 4);
            return as_factor(value, factors);
        }
        uint16_t half;
        memcpy(&half, start + 2 * at, 2);
        uint32_t word = uint32_t(half) << 16;
        memcpy(&value, &word, 4);
        return value;
    }
    void write(size_t at, float value) const {
        if (numbers == FLOATS) {
            memcpy(start + 4 * at, &value, 4);
            return;
        }
        value = without_bits(value, 16);
        memcpy(start + 2 * at, reinterpret_cast<char *>(&value) + 2, 2);
    }
};

// Which arrays are read, and which is written.
struct Task {
    Direction direction;
    Tensor x, w, y;
    Convolution c;
    Array of_x, of_w, of_y;
    float alpha, beta;

    // Calls `term` for all pairs of a pixel of X and a weight that make a pixel of Y, with the places of the three.
    template <typename Term> void each(Term term) const {
        const Steps in_x(x), in_w(w), in_y(y);
        int outputs = w.extents[0] / c.group, inputs = w.extents[1];
        for (int image = 0; image < x.extents[0]; image++) {
            for (int output = 0; output < y.extents[1]; output++) {
                int first = output / outputs * inputs;
                for (int row = 0; row < y.extents[2]; row++) {
                    for (int column = 0; column < y.extents[3]; column++) {
                        size_t at = in_y.place(image, output, row, column);
                        for (int input = 0; input < inputs; input++) {
                            window(row, column, in_x, in_x.place(image, first + input, 0, 0), [&](size_t pixel, int i, int j) {
                                term(pixel, in_w.place(output, input, i, j), at);
                            });
                        }
                    }
                }
            }
        }
    }

    // Calls `term` for the pixels of a plane of X, which begins at `plane`, that lie under the window of one of Y.
    template <typename Term> void window(int row, int column, const Steps &steps, size_t plane, Term term) const {
        for (int i = 0; i < w.extents[2]; i++) {
            int from = row * c.stride[0] - c.pad[0] + i * c.dilation[0];
            for (int j = 0; from >= 0 && from < x.extents[2] && j < w.extents[3]; j++) {
                int beside = column * c.stride[1] - c.pad[1] + j * c.dilation[1];
                if (beside >= 0 && beside < x.extents[3]) {
                    term(plane + size_t(from) * steps.row + size_t(beside) * steps.column, i, j);
                }
            }
        }
    }

    // Each sum is of one of the three arrays, of which the other two are read once and not for each term.
    void run() const {
        std::vector<float> pixels, weights, results;
        switch (direction) {
        case FORWARD:
            pixels = factors(x, of_x), weights = factors(w, of_w), results.resize(y.count());
            each([&](size_t x, size_t w, size_t y) { results[y] += pixels[x] * weights[w]; });
            return write(of_y, results);
        case DATA:
            results = factors(y, of_y), weights = factors(w, of_w), pixels.resize(x.count());
            each([&](size_t x, size_t w, size_t y) { pixels[x] += results[y] * weights[w]; });
            return write(of_x, pixels);
        case FILTER:
            results = factors(y, of_y), pixels = factors(x, of_x), weights.resize(w.count());
            each([&](size_t x, size_t w, size_t y) { weights[w] += pixels[x] * results[y]; });
            return write(of_w, weights);
        }
    }

    static std::vector<float> factors(const Tensor &shape, const Array &array) {
        std::vector<float> all(shape.count());
        for (size_t at = 0; at < all.size(); at++) {
            all[at] = array.read(at);
        }
        return all;
    }

    void write(const Array &to, const std::vector<float> &sums) const {
        for (size_t at = 0; at < sums.size(); at++) {
            to.write(at, beta == 0 ? alpha * sums[at] : alpha * sums[at] + beta * to.read(at));
        }
    }
};

int convolve(Handle *handle, Direction direction, const float *alpha, const float *beta, const Tensor *x, const void *at_x,
             const Tensor *w, const void *at_w, const Tensor *y, const void *at_y, const Convolution *c, int algorithm,
             void *workspace, size_t bytes) {
    LOCKED;
    if (!handle->alive || !handle->stream || stream_state(handle->stream) != SUCCESS) {
        return refuse(NO_HANDLE, "a convolution by a handle that is gone, or without a stream of the current GPU");
    }
    bool by_transforms = algorithm == transforms_of(direction) && !(c->math == FMA_MATH && are_coarse(w));
    if (!is_sound(x, w, y, c) || (algorithm != GOOD && !by_transforms)) {
        return refuse(BAD_PARAM, "a convolution of shapes that do not fit each other, or by an algorithm that is not to be taken");
    }
    if (c->math == DEFAULT_MATH) {
        return refuse(BAD_PARAM, "a convolution by other units than its algorithm was chosen for");
    }
    int device = handle->stream->device;
    const Range arrays[] = {range(at_x, x->bytes()), range(at_w, w->bytes()), range(at_y, y->bytes())};
    const Range space = range(workspace, bytes), &result = arrays[direction == FORWARD ? 2 : direction == DATA ? 0 : 1];
    if (bytes < workspace_of(x, algorithm) || !space.is_of(device)) {
        return refuse(BAD_PARAM, "a workspace that is too short, or not in its GPU's memory");
    }
    for (const Range &one : arrays) {
        if (!one.is_of(device) || one.meets(space) || (&one != &result && one.meets(result))) {
            return refuse(BAD_PARAM, "an array that is not in its GPU's memory, or meets the result or the workspace");
        }
    }
    bool by_tensor_cores = c->math != FMA_MATH && everything().gpus[device]->capability >= 80;
    Factors factors = by_tensor_cores && x->numbers == FLOATS ? Factors::TF32 : Factors::FLOAT;
    auto array = [&](const Range &one) { return Array{one.start, x->numbers, factors}; };
    Task task{direction, *x, *w, *y, *c, array(arrays[0]), array(arrays[1]), array(arrays[2]), *alpha, *beta};
    Work work;
    work.run = [task, space]() -> std::string {
        spoil(space);
        task.run();
        return "";
    };
    return submit(handle->stream, std::move(work)) == SUCCESS ? DONE : EXECUTION_FAILED;
}

template <typename Made> int make(Made **made) {
    *made = new Made;
    return DONE;
}

// Descriptors are never freed, so that one that was destroyed is known for what it is.
template <typename Made> int destroy(Made *made) {
    LOCKED;
    bool was_alive = made->alive;
    made->alive = false;
    return was_alive ? DONE : refuse(BAD_PARAM, "what was destroyed is destroyed again");
}

} // namespace

extern "C" {

size_t cudnnGetVersion() { return 91501; }

int cudnnCreate(Handle **handle) {
    LOCKED;
    return current_state() == SUCCESS ? make(handle) : refuse(NO_HANDLE, "a handle without a current context");
}

int cudnnDestroy(Handle *handle) { return destroy(handle); }

int cudnnSetStream(Handle *handle, Stream *stream) {
    LOCKED;
    handle->stream = stream;
    return stream_state(stream) == SUCCESS ? DONE : BAD_PARAM;
}

int cudnnCreateTensorDescriptor(Tensor **made) { return make(made); }
int cudnnCreateFilterDescriptor(Tensor **made) { return make(made); }
int cudnnCreateConvolutionDescriptor(Convolution **made) { return make(made); }
int cudnnDestroyTensorDescriptor(Tensor *made) { return destroy(made); }
int cudnnDestroyFilterDescriptor(Tensor *made) { return destroy(made); }
int cudnnDestroyConvolutionDescriptor(Convolution *made) { return destroy(made); }

int cudnnSetTensor4dDescriptor(Tensor *tensor, int format, int numbers, int n, int c, int h, int w) {
    return set(tensor, numbers, format, {n, c, h, w});
}

// Which names its numbers first.
int cudnnSetFilter4dDescriptor(Tensor *tensor, int numbers, int format, int outputs, int inputs, int h, int w) {
    return set(tensor, numbers, format, {outputs, inputs, h, w});
}

int cudnnSetConvolution2dDescriptor(Convolution *c, int pad_h, int pad_w, int stride_h, int stride_w, int dilation_h,
                                    int dilation_w, int mode, int compute) {
    *c = {true, {pad_h, pad_w}, {stride_h, stride_w}, {dilation_h, dilation_w}};
    bool is_sound = pad_h >= 0 && pad_w >= 0 && stride_h > 0 && stride_w > 0 && dilation_h > 0 && dilation_w > 0;
    return is_sound && mode == CROSS_CORRELATION && compute == FLOATS ? DONE : refuse(BAD_PARAM, "windows");
}

int cudnnSetConvolutionGroupCount(Convolution *c, int group) {
    c->group = group;
    return group > 0 ? DONE : refuse(BAD_PARAM, "groups");
}

int cudnnSetConvolutionMathType(Convolution *c, int math) {
    c->math = math;
    return math == DEFAULT_MATH || math == TENSOR_OP_MATH || math == FMA_MATH ? DONE : refuse(BAD_PARAM, "a math type");
}

int cudnnGetConvolutionForwardAlgorithm_v7(Handle *handle, Tensor *x, Tensor *w, Convolution *c, Tensor *y, int most, int *count,
                                           Answer *answers) {
    return ask_algorithms(handle, FORWARD, x, w, y, c, most, count, answers);
}

int cudnnGetConvolutionBackwardDataAlgorithm_v7(Handle *handle, Tensor *w, Tensor *dy, Convolution *c, Tensor *dx, int most,
                                                int *count, Answer *answers) {
    return ask_algorithms(handle, DATA, dx, w, dy, c, most, count, answers);
}

int cudnnGetConvolutionBackwardFilterAlgorithm_v7(Handle *handle, Tensor *x, Tensor *dy, Convolution *c, Tensor *dw, int most,
                                                  int *count, Answer *answers) {
    return ask_algorithms(handle, FILTER, x, dw, dy, c, most, count, answers);
}

int cudnnGetConvolutionForwardWorkspaceSize(Handle *, Tensor *x, Tensor *w, Convolution *c, Tensor *y, int algorithm,
                                            size_t *bytes) {
    return ask_workspace(x, w, y, c, algorithm, bytes);
}

int cudnnGetConvolutionBackwardDataWorkspaceSize(Handle *, Tensor *w, Tensor *dy, Convolution *c, Tensor *dx, int algorithm,
                                                 size_t *bytes) {
    return ask_workspace(dx, w, dy, c, algorithm, bytes);
}

int cudnnGetConvolutionBackwardFilterWorkspaceSize(Handle *, Tensor *x, Tensor *dy, Convolution *c, Tensor *dw, int algorithm,
                                                   size_t *bytes) {
    return ask_workspace(x, dw, dy, c, algorithm, bytes);
}

int cudnnConvolutionForward(Handle *handle, const float *alpha, Tensor *x, const void *at_x, Tensor *w, const void *at_w,
                            Convolution *c, int algorithm, void *workspace, size_t bytes, const float *beta, Tensor *y,
                            void *at_y) {
    return convolve(handle, FORWARD, alpha, beta, x, at_x, w, at_w, y, at_y, c, algorithm, workspace, bytes);
}

int cudnnConvolutionBackwardData(Handle *handle, const float *alpha, Tensor *w, const void *at_w, Tensor *dy, const void *at_dy,
                                 Convolution *c, int algorithm, void *workspace, size_t bytes, const float *beta, Tensor *dx,
                                 void *at_dx) {
    return convolve(handle, DATA, alpha, beta, dx, at_dx, w, at_w, dy, at_dy, c, algorithm, workspace, bytes);
}

int cudnnConvolutionBackwardFilter(Handle *handle, const float *alpha, Tensor *x, const void *at_x, Tensor *dy, const void *at_dy,
                                   Convolution *c, int algorithm, void *workspace, size_t bytes, const float *beta, Tensor *dw,
                                   void *at_dw) {
    return convolve(handle, FILTER, alpha, beta, x, at_x, dw, at_dw, dy, at_dy, c, algorithm, workspace, bytes);
}
}
