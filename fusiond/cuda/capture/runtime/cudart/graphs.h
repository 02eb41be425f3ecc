// The types behind the handles of streams, events and graphs.
#pragma once

#include "state.h"

struct CUgraph_st;

struct CUgraphNode_st {
    cudaGraphNodeType type;
    CUgraph_st* graph;
    std::vector<cudaGraphNode_t> after;
    cudart::Work work;                         // of all but kernels and graphs
    std::optional<cudart::KernelStep> kernel;
    std::shared_ptr<CUgraph_st> child;
    cudaHostNodeParams host = {};
    cudaMemcpy3DParms copy = {};
    cudaMemsetParams fill = {};
    std::vector<void*> pointers = {};          // to the kernel's arguments, for who asks
};

struct CUgraph_st {
    std::vector<std::unique_ptr<CUgraphNode_st>> nodes;

    cudaGraphNode_t add(cudaGraphNodeType type, const std::vector<cudaGraphNode_t>& after) {
        nodes.emplace_back(new CUgraphNode_st{type, this, after});
        return nodes.back().get();
    }
};

struct CUstream_st {
    unsigned flags = 0;
    int priority = 0;
    uint64_t number = 0;
    cudaGraph_t graph = nullptr;        // that its work goes into
    bool origin = false;                // where the capture began
    bool given = false;                 // the graph is the program's
    uint64_t capture = 0;
    std::vector<cudaGraphNode_t> tail;  // what the next step comes after
};

struct CUevent_st {
    unsigned flags = 0;
    bool recorded = false;
    uint64_t when_ns = 0;
    cudaGraph_t graph = nullptr;  // where it was recorded in a stream that is captured
    uint64_t capture = 0;
    std::vector<cudaGraphNode_t> tail;
};
