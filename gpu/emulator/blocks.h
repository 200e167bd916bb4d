// Kernels on the CPU: one block after the other, whose threads are fibres.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

struct Index {
    unsigned x, y, z;
};

// As `struct EmulatedPlace` of builtins.h.
struct Place {
    Index thread, block, block_size, grid_size;
    void (*barrier)();
};

// A kernel of a compiled source.
struct Kernel {
    std::string name;
    void (*call)(void **);
    std::vector<size_t> sizes;
    Place *place;
    // What the blocks of its source share, filled with all bits 1 before each block.
    char *shared;
    size_t shared_bytes;
};

// Runs all blocks of a launch. Returns what went wrong; empty if nothing did.
std::string run_blocks(const Kernel &kernel, Index grid, Index block, void **arguments);
