// Makes mistakes, each of which the emulator must find, and a few things that are none.

#include "work.h"

#include <cstdio>
#include <cstring>
#include <vector>

extern "C" {
int nvrtcCreateProgram(void **, const char *, const char *, int, const char *const *, const char *const *);
int nvrtcCompileProgram(void *, int, const char *const *);
int nvrtcGetCUBINSize(void *, size_t *);
int nvrtcGetCUBIN(void *, char *);
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(unsigned long long *, size_t);
int cuMemHostAlloc(void **, size_t, unsigned);
int cuMemFreeHost(void *);
int cuMemcpyHtoDAsync_v2(unsigned long long, const void *, size_t, void *);
int cuMemcpyDtoHAsync_v2(void *, unsigned long long, size_t, void *);
int cuModuleLoadData(void **, const void *);
int cuModuleGetFunction(void **, void *, const char *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
int cuStreamCreateWithPriority(void **, unsigned, int);
int cuStreamDestroy_v2(void *);
int cuStreamSynchronize(void *);
int cuStreamWaitEvent(void *, void *, unsigned);
int cuEventCreate(void **, unsigned);
int cuEventDestroy_v2(void *);
int cuEventRecord(void *, void *);
int cuStreamBeginCapture_v2(void *, int);
int cuStreamEndCapture(void *, void **);
int cuGraphInstantiateWithFlags(void **, void *, unsigned long long);
int cuGraphLaunch(void *, void *);
int cublasCreate_v2(void **);
int cublasDestroy_v2(void *);
int cublasSetStream_v2(void *, void *);
int cublasSetWorkspace_v2(void *, unsigned long long, size_t);
int cublasGemmEx(void *, int, int, int, int, int, const float *, unsigned long long, int, int, unsigned long long, int, int,
                 const float *, unsigned long long, int, int, int, int);
int cudnnCreate(void **);
int cudnnSetStream(void *, void *);
int cudnnCreateTensorDescriptor(void **);
int cudnnCreateFilterDescriptor(void **);
int cudnnCreateConvolutionDescriptor(void **);
int cudnnDestroyTensorDescriptor(void *);
int cudnnSetTensor4dDescriptor(void *, int, int, int, int, int, int);
int cudnnSetFilter4dDescriptor(void *, int, int, int, int, int, int);
int cudnnSetConvolution2dDescriptor(void *, int, int, int, int, int, int, int, int);
int cudnnSetConvolutionMathType(void *, int);
int cudnnGetConvolutionForwardWorkspaceSize(void *, void *, void *, void *, void *, int, size_t *);
int cudnnConvolutionForward(void *, const float *, void *, unsigned long long, void *, unsigned long long, void *, int,
                            unsigned long long, size_t, const float *, void *, unsigned long long);
}

static const char *SOURCE = R"(
extern "C" __global__ void put(int* to, int at, int value) { if (threadIdx.x == 0 && blockIdx.x == 0) { to[at] = value; } }
extern "C" __global__ void twice(int* to) { to[threadIdx.x] *= 2; }
extern "C" __global__ void turn(int* to) {
    __shared__ int all[64];
    all[threadIdx.x] = to[threadIdx.x];
    __syncthreads();
    to[threadIdx.x] = all[63 - threadIdx.x];
}
extern "C" __global__ void early(int* to) {
    __shared__ int all[64];
    all[threadIdx.x] = to[threadIdx.x];
    to[threadIdx.x] = all[63 - threadIdx.x];
}
extern "C" __global__ void alone(int* to) { if (threadIdx.x < 7) { __syncthreads(); } to[threadIdx.x] = 1; }
)";

static int failures = 0;

static void expect(const char *what, long found, long wanted) {
    bool same = found == wanted;
    std::printf("%s %s: %ld, expected %ld\n", same ? "ok" : "FAILED", what, found, wanted);
    failures += !same;
}

static void *module_of(const char *text) {
    void *program, *module = nullptr;
    nvrtcCreateProgram(&program, text, "mistakes.cu", 0, nullptr, nullptr);
    expect("compiling", nvrtcCompileProgram(program, 0, nullptr), 0);
    size_t size = 0;
    nvrtcGetCUBINSize(program, &size);
    std::vector<char> image(size);
    nvrtcGetCUBIN(program, image.data());
    expect("loading", cuModuleLoadData(&module, image.data()), SUCCESS);
    return module;
}

// What one GPU is asked for.
struct Bench {
    void *module, *stream, *other, *event;
    unsigned long long memory;
    int *host;
    static constexpr int COUNT = 64, BYTES = COUNT * 4;

    explicit Bench(int ordinal) {
        void *context;
        cuDevicePrimaryCtxRetain(&context, ordinal);
        cuCtxSetCurrent(context);
        module = module_of(SOURCE);
        cuStreamCreateWithPriority(&stream, 1, 0);
        cuStreamCreateWithPriority(&other, 1, -1);
        cuEventCreate(&event, 0);
        cuMemAlloc_v2(&memory, BYTES);
        void *pinned;
        cuMemHostAlloc(&pinned, BYTES, 0);
        host = static_cast<int *>(pinned);
    }

    int launch(const char *kernel, void *in, int at = 0, int value = 0, unsigned threads = COUNT) {
        void *function;
        if (int code = cuModuleGetFunction(&function, module, kernel)) {
            return code;
        }
        void *arguments[] = {&memory, &at, &value};
        return cuLaunchKernel(function, 1, 1, 1, threads, 1, 1, 0, in, arguments, nullptr);
    }

    void fill() {
        for (int i = 0; i < COUNT; i++) {
            host[i] = i;
        }
        cuMemcpyHtoDAsync_v2(memory, host, BYTES, stream);
        cuStreamSynchronize(stream);
    }

    int read(int at) {
        cuMemcpyDtoHAsync_v2(host, memory, BYTES, stream);
        int code = cuStreamSynchronize(stream);
        return code ? -code : host[at];
    }
};

static void order(Bench &on) {
    on.fill();
    on.launch("turn", on.stream);
    expect("threads of a block share memory", on.read(0), 63);
    on.fill();
    on.launch("early", on.stream);
    int first = on.read(0);
    expect("who does not wait for others finds nonsense", first == 63 && on.read(63) == 0, 0);
    on.fill();
    on.launch("twice", on.stream);
    cuEventRecord(on.event, on.stream);
    cuStreamWaitEvent(on.other, on.event, 0);
    on.launch("put", on.other, 5, 7);
    cuStreamSynchronize(on.other);
    expect("an event orders streams", on.read(5), 7);
    int lucky = 0;
    for (int i = 0; i < 64; i++) {
        on.fill();
        on.launch("twice", on.stream);
        on.launch("put", on.other, 5, 7);
        cuStreamSynchronize(on.other);
        lucky += on.read(5) == 7;
    }
    expect("a wait that is missing is found out", lucky < 64, 1);
}

static void graphs(Bench &on) {
    void *graph = nullptr, *ready = nullptr;
    on.fill();
    expect("begin", cuStreamBeginCapture_v2(on.stream, 1), SUCCESS);
    on.launch("twice", on.stream);
    cuEventRecord(on.event, on.stream);
    cuStreamWaitEvent(on.other, on.event, 0);
    on.launch("twice", on.other);
    expect("a stream that is not waited for", cuStreamEndCapture(on.stream, &graph), CAPTURE_UNJOINED);
    expect("nothing runs while it is recorded", on.read(3), 3);
    cuStreamBeginCapture_v2(on.stream, 1);
    on.launch("twice", on.stream);
    expect("waiting while a graph is recorded", cuStreamSynchronize(on.stream), CAPTURE_UNSUPPORTED);
    expect("which ends it", cuStreamEndCapture(on.stream, &graph), CAPTURE_INVALIDATED);
    cuStreamBeginCapture_v2(on.stream, 1);
    on.launch("twice", on.stream);
    expect("a graph", cuStreamEndCapture(on.stream, &graph), SUCCESS);
    expect("made ready", cuGraphInstantiateWithFlags(&ready, graph, 0), SUCCESS);
    cuGraphLaunch(ready, on.stream);
    cuGraphLaunch(ready, on.stream);
    expect("runs as often as it is asked to", on.read(3), 12);
}

static void handles(Bench &on) {
    void *event, *stream;
    cuEventCreate(&event, 0);
    cuEventRecord(event, on.stream);
    cuEventDestroy_v2(event);
    expect("an event that is gone", cuStreamWaitEvent(on.other, event, 0), INVALID_HANDLE);
    cuStreamCreateWithPriority(&stream, 1, 0);
    cuStreamDestroy_v2(stream);
    expect("a stream that is gone", cuEventRecord(on.event, stream), INVALID_HANDLE);
    expect("too many threads", on.launch("twice", on.stream, 0, 0, 1025), INVALID_VALUE);
    int apart[Bench::COUNT];
    expect("memory that is not pinned", cuMemcpyHtoDAsync_v2(on.memory, apart, Bench::BYTES, on.stream), INVALID_VALUE);
    expect("too long a copy", cuMemcpyHtoDAsync_v2(on.memory + 4, on.host, Bench::BYTES, on.stream), INVALID_VALUE);
    cuMemcpyHtoDAsync_v2(on.memory, on.host, Bench::BYTES, on.stream);
    expect("memory that a copy still needs", cuMemFreeHost(on.host), INVALID_VALUE);
}

// Products of [0 1 2; 3 4 5] and what is there twice, row by row, as gpu/driver/blas.rs asks for them.
static void products(Bench &on) {
    void *handle;
    float one = 1, zero = 0;
    unsigned long long space;
    cuMemAlloc_v2(&space, 1024);
    auto *values = reinterpret_cast<float *>(on.host);
    auto fill = [&] {
        for (int i = 0; i < Bench::COUNT; i++) {
            values[i] = i < 12 ? float(i) : -1;
        }
        cuMemcpyHtoDAsync_v2(on.memory, on.host, Bench::BYTES, on.stream);
    };
    auto product = [&](int lead, unsigned long long to) {
        return cublasGemmEx(handle, 0, 0, 2, 2, 3, &one, on.memory + 24, 0, lead, on.memory, 0, 3, &zero, to, 0, 2, 68, -1);
    };
    fill();
    expect("a handle", cublasCreate_v2(&handle), 0);
    expect("a product without a stream", product(2, on.memory + 64) != 0, 1);
    cublasSetStream_v2(handle, on.stream);
    expect("a product without a workspace", product(2, on.memory + 64) != 0, 1);
    expect("a workspace that is not aligned", cublasSetWorkspace_v2(handle, space + 4, 512) != 0, 1);
    expect("a workspace", cublasSetWorkspace_v2(handle, space, 1024), 0);
    expect("columns that overlap", product(1, on.memory + 64) != 0, 1);
    expect("a result over a factor", product(2, on.memory + 16) != 0, 1);
    expect("a result behind the memory", product(2, on.memory + Bench::BYTES - 8) != 0, 1);
    expect("a product", product(2, on.memory + 64), 0);
    on.read(0);
    expect("of rows", long(values[16]), 0 * 6 + 1 * 8 + 2 * 10);
    expect("and columns", long(values[19]), 3 * 7 + 4 * 9 + 5 * 11);
    cublasSetStream_v2(handle, on.stream);
    expect("a stream takes the workspace away", product(2, on.memory + 64) != 0, 1);
    cublasDestroy_v2(handle);
    expect("a handle that is gone", product(2, on.memory + 64) != 0, 1);
}

// A 3x3 image with a 2x2 window.
static void convolutions(Bench &on) {
    void *handle, *x, *w, *y, *c;
    float one = 1, zero = 0;
    unsigned long long space;
    size_t bytes = 0;
    cuMemAlloc_v2(&space, 1024);
    auto *values = reinterpret_cast<float *>(on.host);
    for (int i = 0; i < Bench::COUNT; i++) {
        values[i] = i < 9 ? float(i) : i < 13 ? float(i - 9) : -1;
    }
    cuMemcpyHtoDAsync_v2(on.memory, on.host, Bench::BYTES, on.stream);
    cudnnCreate(&handle);
    cudnnCreateTensorDescriptor(&x);
    cudnnCreateTensorDescriptor(&y);
    cudnnCreateFilterDescriptor(&w);
    cudnnCreateConvolutionDescriptor(&c);
    expect("no images", cudnnSetTensor4dDescriptor(x, 0, 0, 0, 1, 3, 3) != 0, 1);
    expect("a blob", cudnnSetTensor4dDescriptor(x, 0, 0, 1, 1, 3, 3), 0);
    expect("a weight", cudnnSetFilter4dDescriptor(w, 0, 0, 1, 1, 2, 2), 0);
    expect("steps of 0", cudnnSetConvolution2dDescriptor(c, 0, 0, 0, 1, 1, 1, 1, 0) != 0, 1);
    expect("windows", cudnnSetConvolution2dDescriptor(c, 0, 0, 1, 1, 1, 1, 1, 0), 0);
    cudnnSetTensor4dDescriptor(y, 0, 0, 1, 1, 3, 3);
    expect("too large a result", cudnnGetConvolutionForwardWorkspaceSize(handle, x, w, c, y, 0, &bytes) != 0, 1);
    cudnnSetTensor4dDescriptor(y, 0, 0, 1, 1, 2, 2);
    expect("a result", cudnnGetConvolutionForwardWorkspaceSize(handle, x, w, c, y, 0, &bytes), 0);
    auto run = [&](int algorithm, size_t workspace, unsigned long long to) {
        return cudnnConvolutionForward(handle, &one, x, on.memory, w, on.memory + 36, c, algorithm, space, workspace, &zero, y, to);
    };
    expect("no stream", run(0, bytes, on.memory + 64) != 0, 1);
    cudnnSetStream(handle, on.stream);
    enum { DEFAULT_MATH = 0, FMA_MATH = 3 };
    cudnnSetConvolutionMathType(c, FMA_MATH);
    expect("an algorithm that is not to be taken", run(1, bytes, on.memory + 64) != 0, 1);
    expect("too short a workspace", run(0, bytes - 1, on.memory + 64) != 0, 1);
    expect("a result over its source", run(0, bytes, on.memory + 4) != 0, 1);
    cudnnSetConvolutionMathType(c, DEFAULT_MATH);
    expect("units that no answer named", run(0, bytes, on.memory + 64) != 0, 1);
    cudnnSetConvolutionMathType(c, FMA_MATH);
    expect("a convolution", run(0, bytes, on.memory + 64), 0);
    on.read(0);
    expect("of the first window", long(values[16]), 0 * 0 + 1 * 1 + 3 * 2 + 4 * 3);
    expect("and of the last", long(values[19]), 4 * 0 + 5 * 1 + 7 * 2 + 8 * 3);
    expect("workspace holds nothing", cuMemcpyDtoHAsync_v2(on.host, space, 4, on.stream), SUCCESS);
    cuStreamSynchronize(on.stream);
    expect("behind it", on.host[0], -1);
    cudnnDestroyTensorDescriptor(x);
    expect("a blob that is gone", run(0, bytes, on.memory + 64) != 0, 1);
}

int main() {
    expect("starting", cuInit(0), SUCCESS);
    {
        Bench first(0);
        order(first);
        graphs(first);
        handles(first);
        products(first);
        convolutions(first);
        first.launch("put", first.stream, Bench::COUNT, 1);
        expect("an address behind its memory", first.read(0), -ILLEGAL_ADDRESS);
    }
    Bench second(1);
    second.fill();
    expect("the other GPU works on", second.read(9), 9);
    second.launch("alone", second.stream);
    expect("threads that wait for others that are gone", second.read(0), -LAUNCH_FAILED);
    return failures > 0;
}
