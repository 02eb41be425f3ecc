// Graphs: made node by node or from a stream, and launched step by step in an order that their edges allow.
#include "graphs.h"

#include <cstdio>

namespace cudart {
namespace {

struct Step {
    cudaGraphNode_t from;  // the node that it was made of
    cudaGraphNodeType type;
    Work work;
    std::optional<KernelStep> kernel;
    bool enabled = true;
};

// The nodes so that each comes behind those it depends on.
std::vector<cudaGraphNode_t> ordered(const CUgraph_st& graph) {
    std::vector<cudaGraphNode_t> found;
    std::set<cudaGraphNode_t> done;
    while (found.size() < graph.nodes.size()) {
        const size_t before = found.size();
        for (const auto& each : graph.nodes) {
            if (done.count(each.get())) continue;
            bool ready = true;
            for (cudaGraphNode_t earlier : each->after) ready &= done.count(earlier) > 0;
            if (ready) found.push_back(each.get()), done.insert(each.get());
        }
        if (found.size() == before) return {};  // a cycle
    }
    return found;
}

void append(const CUgraph_st& graph, std::vector<Step>& steps) {
    for (cudaGraphNode_t each : ordered(graph)) {
        if (each->child) append(*each->child, steps);
        else steps.push_back({each, each->type, each->work, each->kernel});
    }
}

std::shared_ptr<CUgraph_st> clone(const CUgraph_st& graph, std::map<cudaGraphNode_t, cudaGraphNode_t>& places) {
    auto made = std::make_shared<CUgraph_st>();
    for (const auto& each : graph.nodes) {
        made->nodes.emplace_back(new CUgraphNode_st(*each));
        made->nodes.back()->graph = made.get();
        places[each.get()] = made->nodes.back().get();
    }
    for (const auto& each : made->nodes)
        for (cudaGraphNode_t& earlier : each->after) earlier = places[earlier];
    return made;
}

std::map<cudaGraphNode_t, cudaGraphNode_t>& clones() {
    static auto* const all = new std::map<cudaGraphNode_t, cudaGraphNode_t>();
    return *all;
}

cudaError_t kernel_of(const cudaKernelNodeParams& asked, KernelStep& made) {
    Configuration how;
    how.grid = asked.gridDim, how.block = asked.blockDim, how.shared = asked.sharedMemBytes;
    return prepare(asked.func, how, asked.kernelParams, made);
}

Work host_work(const cudaHostNodeParams& asked) {
    return [asked] {
        asked.fn(asked.userData);
        return cudaSuccess;
    };
}

cudaError_t fill_work(const cudaMemsetParams& asked, Work& work) {
    const cudaPitchedPtr to = {asked.dst, asked.height > 1 ? asked.pitch : asked.width * asked.elementSize, 0, 0};
    return fill_box(to, asked.value, asked.elementSize, {asked.width * asked.elementSize, asked.height, 1}, work, nullptr);
}

cudaMemcpy3DParms in_a_row(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    cudaMemcpy3DParms made = {};
    made.dstPtr = {to, bytes, bytes, 1}, made.srcPtr = {const_cast<void*>(from), bytes, bytes, 1};
    made.extent = {bytes, 1, 1}, made.kind = kind;
    return made;
}

// A node that was asked for, unless something is wrong.
template <class F>
cudaError_t add(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* after, size_t count, cudaGraphNodeType type, F&& complete) {
    return call([&] {
        if (!made || !graph || (count && !after)) return cudaErrorInvalidValue;
        CUgraphNode_st node{type, graph, std::vector<cudaGraphNode_t>(after, after + count)};
        if (cudaError_t problem = complete(node)) return problem;
        graph->nodes.emplace_back(new CUgraphNode_st(std::move(node)));
        *made = graph->nodes.back().get();
        return cudaSuccess;
    });
}

}  // namespace
}  // namespace cudart

using namespace cudart;

struct CUgraphExec_st {
    std::vector<Step> steps;
    uint64_t number = 0;  // in the trace; 0: it was not launched as it is
};

namespace {

cudaError_t run(CUgraphExec_st& exec, cudaStream_t stream) {
    static uint64_t count = 0;
    if (!exec.number) exec.number = ++count;
    for (const Step& each : exec.steps) {
        if (!each.enabled) continue;
        if (each.kernel) note_launch(*each.kernel, exec.number, stream);
        cudaError_t problem = each.kernel ? carry_out(*each.kernel) : each.work ? each.work() : cudaSuccess;
        if (problem != cudaSuccess) return problem;
        if (runtime().sticky != cudaSuccess) return cudaSuccess;
    }
    return cudaSuccess;
}

cudaError_t instantiate(cudaGraphExec_t* made, cudaGraph_t graph) {
    return call([&] {
        if (!made || !graph) return cudaErrorInvalidValue;
        auto exec = std::make_unique<CUgraphExec_st>();
        append(*graph, exec->steps);
        if (exec->steps.empty() && !graph->nodes.empty() && ordered(*graph).empty()) return cudaErrorInvalidValue;
        *made = exec.release();
        return cudaSuccess;
    });
}

// Changes the step of a node of an executable graph.
template <class F>
cudaError_t change(cudaGraphExec_t exec, cudaGraphNode_t node, F&& how) {
    return call([&] {
        if (!exec || !node) return cudaErrorInvalidValue;
        for (Step& each : exec->steps)
            if (each.from == node) {
                exec->number = 0;
                return how(each);
            }
        return cudaErrorInvalidValue;
    });
}

// Lists are asked for twice: how many there are, and which.
template <class T>
cudaError_t list(const std::vector<T>& all, T* room, size_t* count) {
    if (!count) return cudaErrorInvalidValue;
    if (room)
        for (size_t k = 0; k < *count; ++k) room[k] = k < all.size() ? all[k] : T{};
    *count = room ? std::min(*count, all.size()) : all.size();
    return cudaSuccess;
}

}  // namespace

extern "C" {

// --- graphs ---

cudaError_t cudaGraphCreate(cudaGraph_t* made, unsigned) {
    return call([&] {
        if (!made) return cudaErrorInvalidValue;
        *made = new CUgraph_st();
        return cudaSuccess;
    });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    return call([&] {
        if (!graph) return cudaErrorInvalidValue;
        delete graph;
        return cudaSuccess;
    });
}

cudaError_t cudaGraphClone(cudaGraph_t* made, cudaGraph_t graph) {
    return call([&] {
        if (!made || !graph) return cudaErrorInvalidValue;
        std::map<cudaGraphNode_t, cudaGraphNode_t> places;
        *made = new CUgraph_st(std::move(*clone(*graph, places)));
        for (const auto& each : (*made)->nodes) each->graph = *made;
        for (const auto& [from, to] : places) clones()[to] = from;
        return cudaSuccess;
    });
}

cudaError_t cudaGraphNodeFindInClone(cudaGraphNode_t* found, cudaGraphNode_t original, cudaGraph_t graph) {
    return call([&] {
        for (const auto& each : graph->nodes)
            if (clones()[each.get()] == original) {
                *found = each.get();
                return cudaSuccess;
            }
        return cudaErrorInvalidValue;
    });
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
    return call([&] {
        std::vector<cudaGraphNode_t> all;
        for (const auto& each : graph->nodes) all.push_back(each.get());
        return list(all, nodes, count);
    });
}

cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
    return call([&] {
        std::vector<cudaGraphNode_t> all;
        for (const auto& each : graph->nodes)
            if (each->after.empty()) all.push_back(each.get());
        return list(all, nodes, count);
    });
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
    return call([&] {
        *type = node->type;
        return cudaSuccess;
    });
}

#if CUDART_VERSION >= 13000
cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to, cudaGraphEdgeData*, size_t* count) {
    return call([&] {
        std::vector<cudaGraphNode_t> begins, ends;
        for (const auto& each : graph->nodes)
            for (cudaGraphNode_t earlier : each->after) begins.push_back(earlier), ends.push_back(each.get());
        size_t room = count ? *count : 0;
        cudaError_t problem = list(begins, from, count);
        return problem != cudaSuccess || !to ? problem : list(ends, to, &room);
    });
}

cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* nodes, cudaGraphEdgeData*, size_t* count) {
    return call([&] { return list(node->after, nodes, count); });
}

cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t node, cudaGraphNode_t* nodes, cudaGraphEdgeData*, size_t* count) {
    return call([&] {
        std::vector<cudaGraphNode_t> all;
        for (const auto& each : node->graph->nodes)
            for (cudaGraphNode_t earlier : each->after)
                if (earlier == node) all.push_back(each.get());
        return list(all, nodes, count);
    });
}

cudaError_t cudaGraphAddDependencies(cudaGraph_t, const cudaGraphNode_t* from, const cudaGraphNode_t* to, const cudaGraphEdgeData*, size_t count) {
    return call([&] {
        for (size_t k = 0; k < count; ++k) to[k]->after.push_back(from[k]);
        return cudaSuccess;
    });
}

cudaError_t cudaGraphRemoveDependencies(cudaGraph_t, const cudaGraphNode_t* from, const cudaGraphNode_t* to, const cudaGraphEdgeData*, size_t count) {
    return call([&] {
        for (size_t k = 0; k < count; ++k) std::erase(to[k]->after, from[k]);
        return cudaSuccess;
    });
}
#endif

cudaError_t cudaGraphDestroyNode(cudaGraphNode_t node) {
    return call([&] {
        CUgraph_st& graph = *node->graph;
        for (const auto& each : graph.nodes) std::erase(each->after, node);
        std::erase_if(graph.nodes, [&](const auto& each) { return each.get() == node; });
        return cudaSuccess;
    });
}

// --- nodes ---

cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* after, size_t count, const cudaKernelNodeParams* asked) {
    return add(made, graph, after, count, cudaGraphNodeTypeKernel, [&](CUgraphNode_st& node) {
        node.kernel.emplace();
        return kernel_of(*asked, *node.kernel);
    });
}

cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t node, cudaKernelNodeParams* found) {
    return call([&] {
        if (!node || !node->kernel) return cudaErrorInvalidValue;
        const KernelStep& step = *node->kernel;
        node->pointers.clear();
        for (const Parameter& each : step.function->parameters)
            node->pointers.push_back(const_cast<char*>(step.arguments.data()) + each.offset);
        *found = {};
        found->func = step.function, found->gridDim = step.how.grid, found->blockDim = step.how.block;
        found->sharedMemBytes = step.how.shared, found->kernelParams = node->pointers.data();
        return cudaSuccess;
    });
}

cudaError_t cudaGraphKernelNodeSetParams(cudaGraphNode_t node, const cudaKernelNodeParams* asked) {
    return call([&] {
        KernelStep step;
        if (cudaError_t problem = kernel_of(*asked, step)) return problem;
        node->kernel = step;
        return cudaSuccess;
    });
}

cudaError_t cudaGraphAddMemcpyNode(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* after, size_t count, const cudaMemcpy3DParms* asked) {
    return add(made, graph, after, count, cudaGraphNodeTypeMemcpy, [&](CUgraphNode_st& node) {
        node.copy = *asked;
        return copy_box(node.copy, node.work, nullptr);
    });
}

cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* after, size_t count, void* to,
                                     const void* from, size_t bytes, cudaMemcpyKind kind) {
    const cudaMemcpy3DParms asked = in_a_row(to, from, bytes, kind);
    return cudaGraphAddMemcpyNode(made, graph, after, count, &asked);
}

cudaError_t cudaGraphMemcpyNodeGetParams(cudaGraphNode_t node, cudaMemcpy3DParms* found) {
    return call([&] {
        *found = node->copy;
        return cudaSuccess;
    });
}

cudaError_t cudaGraphMemcpyNodeSetParams(cudaGraphNode_t node, const cudaMemcpy3DParms* asked) {
    return call([&] {
        node->copy = *asked;
        return copy_box(node->copy, node->work, nullptr);
    });
}

cudaError_t cudaGraphMemcpyNodeSetParams1D(cudaGraphNode_t node, void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    const cudaMemcpy3DParms asked = in_a_row(to, from, bytes, kind);
    return cudaGraphMemcpyNodeSetParams(node, &asked);
}

cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* after, size_t count, const cudaMemsetParams* asked) {
    return add(made, graph, after, count, cudaGraphNodeTypeMemset, [&](CUgraphNode_st& node) {
        node.fill = *asked;
        return fill_work(node.fill, node.work);
    });
}

cudaError_t cudaGraphMemsetNodeGetParams(cudaGraphNode_t node, cudaMemsetParams* found) {
    return call([&] {
        *found = node->fill;
        return cudaSuccess;
    });
}

cudaError_t cudaGraphMemsetNodeSetParams(cudaGraphNode_t node, const cudaMemsetParams* asked) {
    return call([&] {
        node->fill = *asked;
        return fill_work(node->fill, node->work);
    });
}

cudaError_t cudaGraphAddHostNode(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* after, size_t count, const cudaHostNodeParams* asked) {
    return add(made, graph, after, count, cudaGraphNodeTypeHost, [&](CUgraphNode_st& node) {
        node.host = *asked, node.work = host_work(*asked);
        return cudaSuccess;
    });
}

cudaError_t cudaGraphHostNodeGetParams(cudaGraphNode_t node, cudaHostNodeParams* found) {
    return call([&] {
        *found = node->host;
        return cudaSuccess;
    });
}

cudaError_t cudaGraphHostNodeSetParams(cudaGraphNode_t node, const cudaHostNodeParams* asked) {
    return call([&] {
        node->host = *asked, node->work = host_work(*asked);
        return cudaSuccess;
    });
}

cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* after, size_t count) {
    return add(made, graph, after, count, cudaGraphNodeTypeEmpty, [](CUgraphNode_st&) { return cudaSuccess; });
}

cudaError_t cudaGraphAddEventRecordNode(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* after, size_t count, cudaEvent_t event) {
    return add(made, graph, after, count, cudaGraphNodeTypeEventRecord, [&](CUgraphNode_st& node) {
        node.work = [event] { return cudaEventRecord(event, nullptr); };
        return cudaSuccess;
    });
}

cudaError_t cudaGraphAddEventWaitNode(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* after, size_t count, cudaEvent_t) {
    return add(made, graph, after, count, cudaGraphNodeTypeWaitEvent, [](CUgraphNode_st&) { return cudaSuccess; });
}

cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* after, size_t count, cudaGraph_t child) {
    return add(made, graph, after, count, cudaGraphNodeTypeGraph, [&](CUgraphNode_st& node) {
        std::map<cudaGraphNode_t, cudaGraphNode_t> places;
        node.child = clone(*child, places);
        return cudaSuccess;
    });
}

cudaError_t cudaGraphChildGraphNodeGetGraph(cudaGraphNode_t node, cudaGraph_t* found) {
    return call([&] {
        *found = node->child.get();
        return node->child ? cudaSuccess : cudaErrorInvalidValue;
    });
}

// --- executable graphs ---

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) { return instantiate(made, graph); }
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) { return instantiate(made, graph); }
cudaError_t cudaGraphInstantiateWithParams(cudaGraphExec_t* made, cudaGraph_t graph, cudaGraphInstantiateParams* asked) {
    if (asked) asked->errNode_out = nullptr, asked->result_out = cudaGraphInstantiateSuccess;
    return instantiate(made, graph);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
    return call([] { return cudaSuccess; });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    return call([&] {
        if (!exec) return cudaErrorInvalidValue;
        return in_order(stream, cudaGraphNodeTypeGraph, [=] { return run(*exec, stream); });
    });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    return call([&] {
        if (!exec) return cudaErrorInvalidValue;
        delete exec;
        return cudaSuccess;
    });
}

// The other graph's steps in the place of these, where they are of the same kinds in the same order.
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphExecUpdateResultInfo* info) {
    return call([&] {
        std::vector<Step> steps;
        append(*graph, steps);
        bool alike = steps.size() == exec->steps.size();
        for (size_t k = 0; alike && k < steps.size(); ++k) alike = steps[k].type == exec->steps[k].type;
        if (info) *info = {alike ? cudaGraphExecUpdateSuccess : cudaGraphExecUpdateErrorTopologyChanged, nullptr, nullptr};
        if (!alike) return cudaErrorGraphExecUpdateFailure;
        for (size_t k = 0; k < steps.size(); ++k) steps[k].from = exec->steps[k].from, steps[k].enabled = exec->steps[k].enabled;
        exec->steps = std::move(steps), exec->number = 0;
        return cudaSuccess;
    });
}

cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node, const cudaKernelNodeParams* asked) {
    return change(exec, node, [&](Step& step) { return kernel_of(*asked, *step.kernel); });
}

cudaError_t cudaGraphExecMemcpyNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node, const cudaMemcpy3DParms* asked) {
    return change(exec, node, [&](Step& step) { return copy_box(*asked, step.work, nullptr); });
}

cudaError_t cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t exec, cudaGraphNode_t node, void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    const cudaMemcpy3DParms asked = in_a_row(to, from, bytes, kind);
    return cudaGraphExecMemcpyNodeSetParams(exec, node, &asked);
}

cudaError_t cudaGraphExecMemsetNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node, const cudaMemsetParams* asked) {
    return change(exec, node, [&](Step& step) { return fill_work(*asked, step.work); });
}

cudaError_t cudaGraphExecHostNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node, const cudaHostNodeParams* asked) {
    return change(exec, node, [&](Step& step) {
        step.work = host_work(*asked);
        return cudaSuccess;
    });
}

cudaError_t cudaGraphNodeSetEnabled(cudaGraphExec_t exec, cudaGraphNode_t node, unsigned enabled) {
    return change(exec, node, [&](Step& step) {
        step.enabled = enabled;
        return cudaSuccess;
    });
}

cudaError_t cudaGraphNodeGetEnabled(cudaGraphExec_t exec, cudaGraphNode_t node, unsigned* enabled) {
    return change(exec, node, [&](Step& step) {
        *enabled = step.enabled;
        return cudaSuccess;
    });
}

}  // extern "C"
