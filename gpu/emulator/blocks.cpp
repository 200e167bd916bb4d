// A fibre runs one thread after the other until one of them reaches a barrier; then another fibre goes on. So kernels without
// barriers are a loop, and others have as many fibres as threads. The order of threads is turned around from barrier to barrier,
// so that who forgets one does not get away with it.

#include "blocks.h"

#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <sys/mman.h>
#include <ucontext.h>

namespace {

constexpr size_t STACK = 128 << 10;

struct Fibre {
    jmp_buf state;
    bool started = false;
    // The thread that waits in it.
    unsigned thread = 0;
    ucontext_t first;
};

// What runs now. There is one launch at a time (driver.cpp holds a lock).
struct Block {
    const Kernel *kernel;
    void **arguments;
    unsigned threads, next, finished;
    bool turned;
    std::vector<Fibre *> waiting, resumed;
    size_t next_resumed;
    Fibre *now;
    std::vector<Fibre *> idle;
    jmp_buf outside;
} current;

sigjmp_buf fault;
char fault_text[512];

void set_thread(unsigned thread) {
    Place &place = *current.kernel->place;
    unsigned x = place.block_size.x, y = place.block_size.y;
    place.thread = {thread % x, thread / x % y, thread / x / y};
}

[[noreturn]] void go_to(Fibre *fibre) {
    current.now = fibre;
    if (fibre->started) {
        _longjmp(fibre->state, 1);
    }
    fibre->started = true;
    setcontext(&fibre->first);
    abort();
}

// Goes on with whoever can; the calling fibre has saved itself, or is done.
[[noreturn]] void next_fibre();

void run_threads() {
    for (;;) {
        while (current.next < current.threads) {
            unsigned at = current.next++;
            set_thread(current.turned ? current.threads - 1 - at : at);
            current.kernel->call(current.arguments);
            current.finished++;
        }
        // Whoever was resumed has run to its end, too, and comes here through its loop.
        Fibre *own = current.now;
        current.idle.push_back(own);
        if (_setjmp(own->state) == 0) {
            next_fibre();
        }
    }
}

void enter() { run_threads(); }

Fibre *fresh() {
    if (!current.idle.empty()) {
        Fibre *fibre = current.idle.back();
        current.idle.pop_back();
        return fibre;
    }
    auto *fibre = new Fibre;
    void *stack = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED || getcontext(&fibre->first) != 0) {
        std::perror("emulated GPU: a fibre");
        abort();
    }
    // The lowest page is a guard.
    mprotect(stack, 4096, PROT_NONE);
    fibre->first.uc_stack.ss_sp = stack;
    fibre->first.uc_stack.ss_size = STACK;
    fibre->first.uc_link = nullptr;
    makecontext(&fibre->first, enter, 0);
    return fibre;
}

[[noreturn]] void next_fibre() {
    if (current.next < current.threads) {
        go_to(fresh());
    }
    if (current.next_resumed < current.resumed.size()) {
        Fibre *fibre = current.resumed[current.next_resumed++];
        set_thread(fibre->thread);
        go_to(fibre);
    }
    _longjmp(current.outside, 1);
}

// __syncthreads.
void barrier() {
    const Place &place = *current.kernel->place;
    Fibre *own = current.now;
    own->thread = (place.thread.z * place.block_size.y + place.thread.y) * place.block_size.x + place.thread.x;
    current.waiting.push_back(own);
    if (_setjmp(own->state) == 0) {
        next_fibre();
    }
}

// Runs until every thread is done or waits.
void run_phase() {
    if (_setjmp(current.outside) == 0) {
        next_fibre();
    }
}

// Runs one block; false if some threads wait for others that are gone.
bool run_block() {
    const Kernel &kernel = *current.kernel;
    if (kernel.shared_bytes > 0) {
        memset(kernel.shared, 0xff, kernel.shared_bytes);
    }
    current.next = current.finished = 0;
    current.resumed.clear();
    current.next_resumed = 0;
    for (run_phase(); !current.waiting.empty(); run_phase()) {
        if (current.finished > 0) {
            return false;
        }
        current.turned = !current.turned;
        current.resumed.swap(current.waiting);
        current.waiting.clear();
        current.next_resumed = 0;
        if (current.turned) {
            for (size_t i = 0, j = current.resumed.size() - 1; i < j; i++, j--) {
                std::swap(current.resumed[i], current.resumed[j]);
            }
        }
    }
    return true;
}

void on_fault(int, siginfo_t *info, void *) {
    const Place &place = *current.kernel->place;
    snprintf(fault_text, sizeof fault_text,
             "kernel %s used address %p, which is no memory of its GPU: block (%u, %u, %u), thread (%u, %u, %u)",
             current.kernel->name.c_str(), info->si_addr, place.block.x, place.block.y, place.block.z,
             place.thread.x, place.thread.y, place.thread.z);
    siglongjmp(fault, 1);
}

std::string run_all(const Kernel &kernel, Index grid) {
    Place &place = *kernel.place;
    for (unsigned z = 0; z < grid.z; z++) {
        for (unsigned y = 0; y < grid.y; y++) {
            for (unsigned x = 0; x < grid.x; x++) {
                place.block = {x, y, z};
                if (!run_block()) {
                    current.waiting.clear();
                    return "kernel " + kernel.name + ": some threads of a block are done, and others wait for them";
                }
            }
        }
    }
    return "";
}

} // namespace

std::string run_blocks(const Kernel &kernel, Index grid, Index block, void **arguments) {
    current.kernel = &kernel;
    current.arguments = arguments;
    current.threads = block.x * block.y * block.z;
    current.waiting.clear();
    Place &place = *kernel.place;
    place.block_size = block;
    place.grid_size = grid;
    place.barrier = barrier;
    struct sigaction ours = {}, before[2];
    ours.sa_sigaction = on_fault;
    ours.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &ours, &before[0]);
    sigaction(SIGBUS, &ours, &before[1]);
    std::string wrong;
    if (sigsetjmp(fault, 1) == 0) {
        wrong = run_all(kernel, grid);
    } else {
        // The fibres that were under way are lost.
        current.idle.clear();
        wrong = fault_text;
    }
    sigaction(SIGSEGV, &before[0], nullptr);
    sigaction(SIGBUS, &before[1], nullptr);
    return wrong;
}
