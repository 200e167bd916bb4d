// The calls of cuBLAS that gpu/driver/blas.rs makes, as its documentation describes them. A library of its own, so that programs
// can be tried with it and without.

#include "library.h"

#include <algorithm>

namespace {

using Lock = std::lock_guard<std::recursive_mutex>;
#define LOCKED Lock lock(everything().lock)

// cuBLAS' own codes.
enum Status { DONE = 0, NO_HANDLE = 1, BAD_VALUE = 7, FAILED = 13, NOT_SUPPORTED = 15 };
enum Operation { PLAIN = 0, TURNED = 1 };
enum Compute { IN_32F = 68, FAST_16BF = 75, FAST_TF32 = 77 };
constexpr int REAL_32F = 0, DEFAULT_ALGORITHM = -1;
// What a workspace has to be aligned to.
constexpr size_t ALIGNMENT = 256;

struct Handle {
    bool alive = true;
    Stream *stream = nullptr;
    Range workspace = {nullptr, 0};
};

int refuse(int status, const std::string &what) { return wrong(status, "cuBLAS: " + what); }

// A matrix as the library knows it, column by column.
struct Matrix {
    float *values;
    int operation, rows, columns, lead;

    // Extents as they lie in memory.
    int lines() const { return operation == TURNED ? columns : rows; }
    int runs() const { return operation == TURNED ? rows : columns; }
    bool is_sound() const { return (operation == PLAIN || operation == TURNED) && lead >= std::max(1, lines()); }
    Range range() const {
        size_t count = size_t(lead) * (runs() - 1) + lines();
        return ::range(values, count * sizeof(float));
    }
    float &at(int row, int column) const {
        return operation == TURNED ? values[size_t(lead) * row + column] : values[size_t(lead) * column + row];
    }
};

} // namespace

extern "C" {

int cublasCreate_v2(Handle **made) {
    LOCKED;
    if (int code = current_state(); code != SUCCESS) {
        return refuse(NO_HANDLE, "a handle without a current context");
    }
    *made = new Handle;
    return DONE;
}

int cublasDestroy_v2(Handle *handle) {
    LOCKED;
    handle->alive = false;
    return DONE;
}

int cublasSetStream_v2(Handle *handle, Stream *stream) {
    LOCKED;
    // Which takes the workspace away that was given before.
    handle->stream = stream;
    handle->workspace = {nullptr, 0};
    return stream_state(stream) == SUCCESS ? DONE : BAD_VALUE;
}

int cublasSetWorkspace_v2(Handle *handle, void *start, size_t bytes) {
    LOCKED;
    Range workspace = range(start, bytes);
    if (!handle->stream || !workspace.is_of(handle->stream->device)) {
        return refuse(BAD_VALUE, "a workspace before the stream, or outside of its GPU's memory");
    }
    if (reinterpret_cast<uintptr_t>(start) % ALIGNMENT != 0) {
        return refuse(BAD_VALUE, "a workspace that is not aligned to 256 bytes");
    }
    handle->workspace = workspace;
    return DONE;
}

int cublasGemmEx(Handle *handle, int of_a, int of_b, int rows, int columns, int depth, const float *alpha, float *a, int type_a,
                 int lead_a, float *b, int type_b, int lead_b, const float *beta, float *c, int type_c, int lead_c, int compute,
                 int algorithm) {
    LOCKED;
    if (!handle->alive || !handle->stream || stream_state(handle->stream) != SUCCESS) {
        return refuse(NO_HANDLE, "a product by a handle that is gone, or without a stream of the current GPU");
    }
    if (!handle->workspace.start) {
        // The library would take one of its own, which other streams use, too: bits would be others from run to run.
        return refuse(FAILED, "a product without a workspace");
    }
    if (type_a != REAL_32F || type_b != REAL_32F || type_c != REAL_32F || algorithm != DEFAULT_ALGORITHM) {
        return refuse(NOT_SUPPORTED, "a product of other numbers than floats, or by another algorithm than its own");
    }
    if (compute != IN_32F && compute != FAST_16BF && compute != FAST_TF32) {
        return refuse(NOT_SUPPORTED, "a product computed by " + std::to_string(compute));
    }
    Matrix left{a, of_a, rows, depth, lead_a}, right{b, of_b, depth, columns, lead_b}, result{c, PLAIN, rows, columns, lead_c};
    if (rows < 1 || columns < 1 || depth < 1 || !left.is_sound() || !right.is_sound() || !result.is_sound()) {
        return refuse(BAD_VALUE, "extents of a product, or distances of columns");
    }
    int device = handle->stream->device;
    Range space = handle->workspace, into = result.range();
    for (const Range &one : {left.range(), right.range(), into}) {
        if (!one.is_of(device) || one.meets(space)) {
            return refuse(FAILED, "a matrix that is not in its GPU's memory, or in the workspace");
        }
    }
    if (into.meets(left.range()) || into.meets(right.range())) {
        return refuse(FAILED, "a product is written over its factors");
    }
    Factors factors = compute == IN_32F ? Factors::FLOAT : compute == FAST_TF32 ? Factors::TF32 : Factors::BF16;
    float times = *alpha, keep = *beta;
    Work work;
    work.run = [=]() -> std::string {
        spoil(space);
        for (int column = 0; column < columns; column++) {
            for (int row = 0; row < rows; row++) {
                float sum = 0;
                for (int k = 0; k < depth; k++) {
                    sum += as_factor(left.at(row, k), factors) * as_factor(right.at(k, column), factors);
                }
                float &to = result.at(row, column);
                // By 0, what was there is not even read.
                to = keep == 0 ? times * sum : times * sum + keep * to;
            }
        }
        return "";
    };
    return submit(handle->stream, std::move(work)) == SUCCESS ? DONE : FAILED;
}
}
