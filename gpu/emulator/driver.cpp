// The driver's calls that gpu/driver/ makes, as the documentation of CUDA's driver describes them.

#include "blocks.h"
#include "work.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <sys/mman.h>

namespace {

using Lock = std::lock_guard<std::recursive_mutex>;
#define LOCKED Lock lock(everything().lock)

thread_local Gpu *context = nullptr;

constexpr size_t MEMORY = size_t(16) << 30;

struct Module {
    void *library;
    std::map<std::string, Kernel *> kernels;
};

int number(const Gpu *gpu) {
    for (size_t i = 0; i < everything().gpus.size(); i++) {
        if (everything().gpus[i].get() == gpu) {
            return int(i);
        }
    }
    return -1;
}

// Whether a call may be made at all: SUCCESS, or what it answers.
int state() {
    if (!everything().started) {
        return wrong(NOT_INITIALIZED, "a call before cuInit");
    }
    if (!context) {
        return wrong(INVALID_CONTEXT, "a call without a current context");
    }
    return context->failure;
}

// The same for a call that uses a stream of the current context.
int state_of(const Stream *stream) {
    int code = state();
    if (code == SUCCESS && (!stream || !stream->alive)) {
        return wrong(INVALID_HANDLE, "a stream that was destroyed is used");
    }
    if (code == SUCCESS && stream->device != number(context)) {
        return wrong(INVALID_CONTEXT, "a stream of another GPU than the current one is used");
    }
    return code;
}

int state_of(const Event *event) {
    int code = state();
    return code == SUCCESS && !event->alive ? wrong(INVALID_HANDLE, "an event that was destroyed is used") : code;
}

// The same for a call that no thread may make that records a graph.
int state_outside(const char *call) {
    int code = state();
    return code == SUCCESS && is_recording() ? wrong(CAPTURE_UNSUPPORTED, std::string(call) + " while a graph is recorded") : code;
}

#define RETURN_UNLESS_SUCCESS(code)                                                                                    \
    if (int answer = code; answer != SUCCESS) {                                                                        \
        return answer;                                                                                                 \
    }

bool is_pinned(const char *start, size_t bytes) {
    for (const Pinned &one : everything().pinned) {
        if (start >= one.start && start + bytes <= one.start + one.bytes) {
            return true;
        }
    }
    return false;
}

int copy(Stream *stream, char *to, const char *from, size_t bytes, const char *host) {
    RETURN_UNLESS_SUCCESS(state_of(stream));
    for (const char *end : {(const char *)to, from}) {
        if (end == host ? !is_pinned(end, bytes) : !is_memory(stream->device, end, bytes)) {
            return wrong(INVALID_VALUE, "a copy of what is neither memory of its GPU nor pinned memory of the host");
        }
    }
    Work work;
    work.run = [=] {
        memmove(to, from, bytes);
        return std::string();
    };
    work.host = host;
    work.bytes = host ? bytes : 0;
    return submit(stream, std::move(work));
}

// Does all that was put into a stream, or into all streams of its GPU.
int drain(Stream *stream) {
    proceed_until(stream->device, [stream] { return stream->queue.empty(); });
    return everything().gpus[stream->device]->failure;
}

int drain_all(int device) {
    drain(&everything().gpus[device]->none);
    for (Stream *stream : everything().streams) {
        if (stream->device == device) {
            drain(stream);
        }
    }
    return everything().gpus[device]->failure;
}

} // namespace

int current_state() { return state(); }
int stream_state(const Stream *stream) { return state_of(stream); }

extern "C" {

int cuInit(unsigned) {
    LOCKED;
    if (!everything().started) {
        // The compute capabilities of the GPUs.
        const char *given = getenv("QUADRILLE_EMULATED_GPUS");
        for (const char *at = given ? given : "90,90,75"; *at;) {
            char *end;
            long capability = strtol(at, &end, 10);
            if (end == at) {
                return wrong(INVALID_VALUE, "QUADRILLE_EMULATED_GPUS is no list of numbers");
            }
            auto gpu = std::make_unique<Gpu>();
            gpu->capability = int(capability);
            gpu->none.device = int(everything().gpus.size());
            everything().gpus.push_back(std::move(gpu));
            at = *end == ',' ? end + 1 : end;
        }
        everything().started = true;
    }
    return SUCCESS;
}

int cuDriverGetVersion(int *version) {
    *version = 13000;
    return SUCCESS;
}

int cuGetErrorString(int code, const char **text) {
    *text = code == ILLEGAL_ADDRESS ? "an address outside of memory (emulated)" : "said by the emulator";
    return SUCCESS;
}

int cuDeviceGetCount(int *count) {
    LOCKED;
    *count = int(everything().gpus.size());
    return everything().started ? SUCCESS : NOT_INITIALIZED;
}

int cuDeviceGet(int *device, int ordinal) {
    LOCKED;
    *device = ordinal;
    return ordinal >= 0 && size_t(ordinal) < everything().gpus.size() ? SUCCESS : INVALID_DEVICE;
}

int cuDeviceGetName(char *name, int length, int) {
    snprintf(name, length, "Emulated GPU");
    return SUCCESS;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    LOCKED;
    int capability = everything().gpus[device]->capability;
    static const std::map<int, int> known = {
        {1, 1024},   {8, 49152}, {12, 65536}, {13, 1000000}, {16, 4},  {36, 1000000},
        {37, 128}, {39, 2048}, {81, 102400}, {82, 65536},   {106, 16},
    };
    auto found = known.find(attribute);
    *value = attribute == 75 ? capability / 10 : attribute == 76 ? capability % 10 : found == known.end() ? 0 : found->second;
    bool answered = attribute == 75 || attribute == 76 || found != known.end();
    return answered ? SUCCESS : wrong(INVALID_VALUE, "attribute " + std::to_string(attribute) + " of a GPU");
}

int cuDeviceTotalMem_v2(size_t *bytes, int) {
    *bytes = MEMORY;
    return SUCCESS;
}

int cuDevicePrimaryCtxRetain(Gpu **found, int device) {
    LOCKED;
    *found = everything().gpus[device].get();
    return SUCCESS;
}

int cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }

int cuCtxSetCurrent(Gpu *gpu) {
    context = gpu;
    return SUCCESS;
}

int cuCtxGetStreamPriorityRange(int *lowest, int *highest) {
    *lowest = 0;
    *highest = -5;
    return SUCCESS;
}

int cuCtxSynchronize() {
    LOCKED;
    RETURN_UNLESS_SUCCESS(state_outside("cuCtxSynchronize"));
    return drain_all(number(context));
}

int cuMemGetInfo_v2(size_t *free, size_t *total) {
    LOCKED;
    *total = MEMORY;
    *free = MEMORY - context->used;
    return state();
}

int cuMemAlloc_v2(unsigned long long *address, size_t bytes) {
    LOCKED;
    RETURN_UNLESS_SUCCESS(state_outside("cuMemAlloc"));
    if (bytes == 0 || context->used + bytes > MEMORY) {
        return bytes == 0 ? INVALID_VALUE : OUT_OF_MEMORY;
    }
    size_t aligned = (bytes + 255) / 256 * 256, mapped_bytes = (aligned + PAGE - 1) / PAGE * PAGE + 2 * PAGE;
    void *mapped = mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) {
        return OUT_OF_MEMORY;
    }
    // All of it is locked and unlocked around each piece of work: by large pages, where there are any, in a fraction of the time.
    madvise(mapped, mapped_bytes, MADV_HUGEPAGE);
    char *first = static_cast<char *>(mapped);
    // It ends where a page begins that nobody may touch, and holds what nobody can use.
    char *start = first + mapped_bytes - PAGE - aligned;
    memset(start, 0xff, aligned);
    mprotect(mapped, mapped_bytes, PROT_NONE);
    context->memory.push_back({number(context), first, mapped_bytes, start, bytes});
    context->used += bytes;
    *address = reinterpret_cast<unsigned long long>(start);
    return SUCCESS;
}

int cuMemFree_v2(unsigned long long address) {
    LOCKED;
    RETURN_UNLESS_SUCCESS(state_outside("cuMemFree"));
    drain_all(number(context));
    auto &memory = context->memory;
    for (size_t i = 0; i < memory.size(); i++) {
        if (memory[i].start == reinterpret_cast<char *>(address)) {
            context->used -= memory[i].bytes;
            munmap(memory[i].mapped, memory[i].mapped_bytes);
            memory.erase(memory.begin() + long(i));
            return SUCCESS;
        }
    }
    return wrong(INVALID_VALUE, "memory is freed that is none");
}

int cuMemHostAlloc(void **start, size_t bytes, unsigned) {
    LOCKED;
    RETURN_UNLESS_SUCCESS(state_outside("cuMemHostAlloc"));
    *start = aligned_alloc(PAGE, (bytes + PAGE - 1) / PAGE * PAGE);
    everything().pinned.push_back({static_cast<char *>(*start), bytes});
    return *start ? SUCCESS : OUT_OF_MEMORY;
}

int cuMemFreeHost(void *start) {
    LOCKED;
    RETURN_UNLESS_SUCCESS(state());
    auto &pinned = everything().pinned;
    for (size_t i = 0; i < pinned.size(); i++) {
        if (pinned[i].start != start) {
            continue;
        }
        const char *end = pinned[i].start + pinned[i].bytes;
        for (Stream *stream : everything().streams) {
            for (const Work &work : stream->queue) {
                if (work.host && work.host >= pinned[i].start && work.host < end) {
                    return wrong(INVALID_VALUE, "pinned memory is freed while a copy of it is under way");
                }
            }
        }
        free(start);
        pinned.erase(pinned.begin() + long(i));
        return SUCCESS;
    }
    return wrong(INVALID_VALUE, "pinned memory is freed that is none");
}

int cuMemsetD32_v2(unsigned long long address, unsigned value, size_t count) {
    LOCKED;
    RETURN_UNLESS_SUCCESS(state_outside("cuMemsetD32"));
    auto *start = reinterpret_cast<unsigned *>(address);
    if (!is_memory(number(context), reinterpret_cast<char *>(start), count * 4)) {
        return wrong(INVALID_VALUE, "what is no memory of the GPU is filled");
    }
    Work work;
    work.run = [=] {
        std::fill(start, start + count, value);
        return std::string();
    };
    return submit(&context->none, std::move(work));
}

int cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, size_t bytes, Stream *stream) {
    LOCKED;
    return copy(stream, reinterpret_cast<char *>(to), reinterpret_cast<const char *>(from), bytes, nullptr);
}

int cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t bytes, Stream *stream) {
    LOCKED;
    auto *host = static_cast<const char *>(from);
    return copy(stream, reinterpret_cast<char *>(to), host, bytes, host);
}

int cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t bytes, Stream *stream) {
    LOCKED;
    auto *host = static_cast<char *>(to);
    return copy(stream, host, reinterpret_cast<const char *>(from), bytes, host);
}

int cuModuleLoadData(Module **module, const void *image) {
    LOCKED;
    RETURN_UNLESS_SUCCESS(state_outside("cuModuleLoadData"));
    static const char begin[] = "emulated kernels: ";
    auto *text = static_cast<const char *>(image);
    if (strncmp(text, begin, sizeof begin - 1) != 0) {
        return INVALID_IMAGE;
    }
    void *library = dlopen(text + sizeof begin - 1, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        return wrong(INVALID_IMAGE, dlerror());
    }
    *module = new Module{library, {}};
    return SUCCESS;
}

int cuModuleUnload(Module *) {
    // Work that is still to be done may use its kernels; and the library is that of others, too.
    return SUCCESS;
}

int cuModuleGetFunction(Kernel **found, Module *module, const char *name) {
    LOCKED;
    RETURN_UNLESS_SUCCESS(state());
    Kernel *&kernel = module->kernels[name];
    auto symbol = [module](const std::string &what) { return dlsym(module->library, what.c_str()); };
    void *call = symbol(std::string("emulated_call_") + name);
    if (!call) {
        return NOT_FOUND;
    }
    if (!kernel) {
        kernel = new Kernel{name, reinterpret_cast<void (*)(void **)>(call), {}, nullptr, nullptr, 0};
        auto *sizes = reinterpret_cast<const size_t *(*)()>(symbol(std::string("emulated_sizes_") + name))();
        for (; *sizes; sizes++) {
            kernel->sizes.push_back(*sizes);
        }
        kernel->place = reinterpret_cast<Place *(*)()>(symbol("emulated_place_of_module"))();
        kernel->shared = reinterpret_cast<char *(*)(size_t *)>(symbol("emulated_shared_of_module"))(&kernel->shared_bytes);
    }
    *found = kernel;
    return SUCCESS;
}

// Of the registers nobody knows: they are those of a kernel of middle size.
int cuFuncGetAttribute(int *value, int attribute, Kernel *kernel) {
    LOCKED;
    const int values[] = {1024, int(kernel->shared_bytes), 0, 0, 40};
    if (attribute < 0 || attribute > 4) {
        return wrong(INVALID_VALUE, "attribute " + std::to_string(attribute) + " of a kernel");
    }
    *value = values[attribute];
    return state();
}

int cuLaunchKernel(Kernel *kernel, unsigned x, unsigned y, unsigned z, unsigned block_x, unsigned block_y, unsigned block_z,
                   unsigned shared, Stream *stream, void **arguments, void **extra) {
    LOCKED;
    RETURN_UNLESS_SUCCESS(state_of(stream));
    bool blocks_fit = x > 0 && y > 0 && z > 0 && x <= 0x7fffffffu && y <= 65535 && z <= 65535;
    size_t threads = size_t(block_x) * block_y * block_z;
    if (!blocks_fit || threads == 0 || threads > 1024 || block_z > 64 || shared > 0 || extra) {
        return wrong(INVALID_VALUE, "a launch of " + kernel->name + " with too many blocks, threads or shared memory");
    }
    // They are read before the call returns.
    auto bytes = std::make_shared<std::vector<std::vector<unsigned long long>>>();
    for (size_t i = 0; i < kernel->sizes.size(); i++) {
        bytes->emplace_back((kernel->sizes[i] + 7) / 8);
        memcpy(bytes->back().data(), arguments[i], kernel->sizes[i]);
    }
    Work work;
    work.run = [=]() -> std::string {
        std::vector<void *> at;
        for (auto &one : *bytes) {
            at.push_back(one.data());
        }
        return run_blocks(*kernel, {x, y, z}, {block_x, block_y, block_z}, at.data());
    };
    return submit(stream, std::move(work));
}

int cuStreamCreateWithPriority(Stream **stream, unsigned, int priority) {
    LOCKED;
    RETURN_UNLESS_SUCCESS(state_outside("cuStreamCreate"));
    if (priority > 0 || priority < -5) {
        return wrong(INVALID_VALUE, "a priority that this GPU does not have");
    }
    *stream = new Stream{number(context)};
    everything().streams.push_back(*stream);
    return SUCCESS;
}

int cuStreamDestroy_v2(Stream *stream) {
    LOCKED;
    RETURN_UNLESS_SUCCESS(state_of(stream));
    int code = drain(stream);
    stream->alive = false;
    auto &all = everything().streams;
    all.erase(std::find(all.begin(), all.end(), stream));
    return code;
}

int cuStreamSynchronize(Stream *stream) {
    LOCKED;
    RETURN_UNLESS_SUCCESS(state_of(stream));
    if (stream->capture) {
        stream->capture->broken = true;
        return wrong(CAPTURE_UNSUPPORTED, "a stream is waited for while it records a graph");
    }
    return drain(stream);
}

int cuStreamWaitEvent(Stream *stream, Event *event, unsigned) {
    LOCKED;
    RETURN_UNLESS_SUCCESS(state_of(stream));
    RETURN_UNLESS_SUCCESS(state_of(event));
    return wait_for(stream, event);
}

int cuEventCreate(Event **event, unsigned) {
    LOCKED;
    RETURN_UNLESS_SUCCESS(state());
    *event = new Event;
    return SUCCESS;
}

int cuEventDestroy_v2(Event *event) {
    LOCKED;
    RETURN_UNLESS_SUCCESS(state_of(event));
    event->alive = false;
    return SUCCESS;
}

int cuEventRecord(Event *event, Stream *stream) {
    LOCKED;
    RETURN_UNLESS_SUCCESS(state_of(stream));
    RETURN_UNLESS_SUCCESS(state_of(event));
    return record(stream, event);
}

int cuEventQuery(Event *event) {
    LOCKED;
    RETURN_UNLESS_SUCCESS(state_of(event));
    if (event->captured) {
        return wrong(CAPTURED_EVENT, "an event of a graph is asked for");
    }
    if (event->ticket && !event->ticket->done) {
        proceed(number(context));
    }
    return !event->ticket || event->ticket->done ? SUCCESS : NOT_READY;
}

int cuEventSynchronize(Event *event) {
    LOCKED;
    RETURN_UNLESS_SUCCESS(state_of(event));
    if (event->captured) {
        return wrong(CAPTURED_EVENT, "an event of a graph is waited for");
    }
    proceed_until(number(context), [event] { return !event->ticket || event->ticket->done; });
    return context->failure;
}

int cuEventElapsedTime_v2(float *milliseconds, Event *start, Event *end) {
    LOCKED;
    RETURN_UNLESS_SUCCESS(state_of(start));
    RETURN_UNLESS_SUCCESS(state_of(end));
    if (!start->ticket || !end->ticket || start->captured || end->captured) {
        return INVALID_HANDLE;
    }
    *milliseconds = float(end->ticket->milliseconds - start->ticket->milliseconds);
    return start->ticket->done && end->ticket->done ? SUCCESS : NOT_READY;
}

int cuStreamBeginCapture_v2(Stream *stream, int) {
    LOCKED;
    RETURN_UNLESS_SUCCESS(state_of(stream));
    return begin_capture(stream);
}

int cuStreamEndCapture(Stream *stream, Graph **graph) {
    LOCKED;
    RETURN_UNLESS_SUCCESS(state_of(stream));
    return end_capture(stream, graph);
}

int cuGraphGetNodes(Graph *graph, void **, size_t *count) {
    *count = graph->nodes.size();
    return SUCCESS;
}

int cuGraphInstantiateWithFlags(Graph **made, Graph *graph, unsigned long long) {
    LOCKED;
    RETURN_UNLESS_SUCCESS(state_outside("cuGraphInstantiate"));
    *made = new Graph(*graph);
    return SUCCESS;
}

int cuGraphLaunch(Graph *graph, Stream *stream) {
    LOCKED;
    RETURN_UNLESS_SUCCESS(state_of(stream));
    if (!graph->alive || graph->device != stream->device) {
        return wrong(INVALID_HANDLE, "a graph that was destroyed, or is of another GPU, is launched");
    }
    return submit(stream, as_work(*graph));
}

int cuGraphDestroy(Graph *graph) {
    graph->alive = false;
    return SUCCESS;
}

int cuGraphExecDestroy(Graph *graph) { return cuGraphDestroy(graph); }
}
