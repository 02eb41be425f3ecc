/* The part of the driver that describes CUDA graphs, over graphs that a test puts together: compiled against NVIDIA's
 * <cuda.h>, so that prototypes and layouts are NVIDIA's. -DDRIVER=12030: without what came after CUDA 12.3. */
#include <cuda.h>
#include <stdlib.h>
#include <string.h>

#ifndef DRIVER
#define DRIVER CUDA_VERSION
#endif
#define MOST 4096

typedef struct Function {
    const char *name;
    size_t count, *offsets, *sizes;
} Function;

struct CUgraphNode_st {
    CUgraphNodeType type;
    CUDA_KERNEL_NODE_PARAMS kernel;
    CUDA_MEMCPY3D copy;
    CUDA_MEMSET_NODE_PARAMS set;
    CUDA_MEM_ALLOC_NODE_PARAMS allocation;
    CUgraph child;
};

struct CUgraph_st {
    unsigned magic;
    size_t nodes, edges, annotated;
    CUgraphNode node[MOST], from[MOST], to[MOST];
};

typedef struct Memory {
    CUdeviceptr base;
    size_t size;
    unsigned type, managed;
    int ordinal;
} Memory;

static const unsigned magic = 0x67726166;
static Memory memories[MOST];
static size_t memory_count;

/* --- what a test puts together ---------------------------------------------------------------------- */

CUgraph test_graph(void) {
    CUgraph graph = calloc(1, sizeof *graph);
    graph->magic = magic;
    return graph;
}

void test_memory(unsigned type, CUdeviceptr base, size_t size, unsigned managed, int ordinal) {
    memories[memory_count++] = (Memory){base, size, type, managed, ordinal};
}

void test_forget(void) { memory_count = 0; }

static CUgraphNode added(CUgraph graph, CUgraphNodeType type) {
    CUgraphNode node = calloc(1, sizeof *node);
    node->type = type;
    return graph->node[graph->nodes++] = node;
}

CUgraphNode test_node(CUgraph graph, int type) { return added(graph, type); }

void test_edge(CUgraph graph, CUgraphNode from, CUgraphNode to, int port) {
    graph->from[graph->edges] = from, graph->to[graph->edges++] = to, graph->annotated += port;
}

/* how: 0 kernelParams of a CUfunction, 1 of a CUkernel, 2 one packed buffer. */
CUgraphNode test_kernel(CUgraph graph, const char *name, const unsigned *shape, size_t count, const size_t *offsets,
                        const size_t *sizes, const char *packed, size_t bytes, int how) {
    CUgraphNode node = added(graph, CU_GRAPH_NODE_TYPE_KERNEL);
    Function *function = calloc(1, sizeof *function);
    char *values = memcpy(malloc(bytes + 1), packed, bytes);
    *function = (Function){strdup(name), count, calloc(count + 1, sizeof(size_t)), calloc(count + 1, sizeof(size_t))};
    memcpy(function->offsets, offsets, count * sizeof(size_t));
    memcpy(function->sizes, sizes, count * sizeof(size_t));
    CUDA_KERNEL_NODE_PARAMS *params = &node->kernel;
    params->gridDimX = shape[0], params->gridDimY = shape[1], params->gridDimZ = shape[2];
    params->blockDimX = shape[3], params->blockDimY = shape[4], params->blockDimZ = shape[5];
    params->sharedMemBytes = shape[6];
    if (how == 1)
        params->kern = (CUkernel)function;
    else
        params->func = (CUfunction)function;
    if (how == 2) {
        size_t *size = malloc(sizeof *size);
        *size = bytes;
        void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, values, CU_LAUNCH_PARAM_BUFFER_SIZE, size, CU_LAUNCH_PARAM_END};
        params->extra = memcpy(malloc(sizeof extra), extra, sizeof extra);
        return node;
    }
    params->kernelParams = calloc(count + 1, sizeof(void *));
    for (size_t each = 0; each < count; each++)
        params->kernelParams[each] = values + offsets[each];
    return node;
}

/* One end of a copy: type, address, x, y, z, pitch, height. */
CUgraphNode test_copy(CUgraph graph, const size_t *from, const size_t *to, size_t width, size_t height, size_t depth) {
    CUgraphNode node = added(graph, CU_GRAPH_NODE_TYPE_MEMCPY);
    CUDA_MEMCPY3D *copy = &node->copy;
    copy->srcMemoryType = from[0], copy->dstMemoryType = to[0];
    if (from[0] == CU_MEMORYTYPE_HOST) copy->srcHost = (void *)from[1];
    if (from[0] == CU_MEMORYTYPE_DEVICE || from[0] == CU_MEMORYTYPE_UNIFIED) copy->srcDevice = from[1];
    if (from[0] == CU_MEMORYTYPE_ARRAY) copy->srcArray = (CUarray)from[1];
    if (to[0] == CU_MEMORYTYPE_HOST) copy->dstHost = (void *)to[1];
    if (to[0] == CU_MEMORYTYPE_DEVICE || to[0] == CU_MEMORYTYPE_UNIFIED) copy->dstDevice = to[1];
    if (to[0] == CU_MEMORYTYPE_ARRAY) copy->dstArray = (CUarray)to[1];
    copy->srcXInBytes = from[2], copy->srcY = from[3], copy->srcZ = from[4];
    copy->srcPitch = from[5], copy->srcHeight = from[6];
    copy->dstXInBytes = to[2], copy->dstY = to[3], copy->dstZ = to[4];
    copy->dstPitch = to[5], copy->dstHeight = to[6];
    copy->WidthInBytes = width, copy->Height = height, copy->Depth = depth;
    return node;
}

CUgraphNode test_set(CUgraph graph, CUdeviceptr dst, unsigned value, unsigned element, size_t width, size_t height,
                     size_t pitch) {
    CUgraphNode node = added(graph, CU_GRAPH_NODE_TYPE_MEMSET);
    node->set = (CUDA_MEMSET_NODE_PARAMS){dst, pitch, value, element, width, height};
    return node;
}

CUgraphNode test_allocation(CUgraph graph, CUdeviceptr address, size_t size) {
    CUgraphNode node = added(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    node->allocation.dptr = address, node->allocation.bytesize = size;
    return node;
}

CUgraphNode test_child(CUgraph graph, CUgraph child) {
    CUgraphNode node = added(graph, CU_GRAPH_NODE_TYPE_GRAPH);
    node->child = child;
    return node;
}

/* --- the driver ------------------------------------------------------------------------------------- */

CUresult cuInit(unsigned flags) { return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; }

CUresult cuGetErrorName(CUresult error, const char **text) {
    *text = error == CUDA_ERROR_LOSSY_QUERY ? "CUDA_ERROR_LOSSY_QUERY" : "CUDA_ERROR_INVALID_VALUE";
    return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    if (graph->magic != magic) return CUDA_ERROR_INVALID_VALUE;
    if (nodes)
        for (size_t each = 0; each < *count; each++) nodes[each] = each < graph->nodes ? graph->node[each] : NULL;
    if (!nodes || *count > graph->nodes) *count = graph->nodes;
    return CUDA_SUCCESS;
}

static CUresult edges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data, size_t *count) {
    if (from && graph->annotated && !data) return CUDA_ERROR_LOSSY_QUERY;
    if (from)
        for (size_t each = 0; each < *count && each < graph->edges; each++) {
            from[each] = graph->from[each], to[each] = graph->to[each];
            if (data) memset(&data[each], 0, sizeof *data), data[each].from_port = graph->annotated != 0;
        }
    *count = graph->edges;
    return CUDA_SUCCESS;
}

#if DRIVER >= 12030
CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data, size_t *count) {
    return edges(graph, from, to, data, count);
}

CUresult cuFuncGetName(const char **name, CUfunction function) {
    *name = ((Function *)function)->name;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetName(const char **name, CUkernel kernel) { return cuFuncGetName(name, (CUfunction)kernel); }
#undef cuGraphGetEdges
#endif

/* The form that CUDA 10 to 12 have under the plain name. */
CUresult edges_without_data(CUgraph, CUgraphNode *, CUgraphNode *, size_t *) __asm__("cuGraphGetEdges");
CUresult edges_without_data(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count) {
    return edges(graph, from, to, NULL, count);
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type) {
    *type = node->type;
    return CUDA_SUCCESS;
}

#if DRIVER >= 12000
CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *params) {
    *params = node->kernel;
    return CUDA_SUCCESS;
}
#endif

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D *params) {
    *params = node->copy;
    return CUDA_SUCCESS;
}

CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS *params) {
    *params = node->set;
    return CUDA_SUCCESS;
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    *params = node->allocation;
    return CUDA_SUCCESS;
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *child) {
    *child = node->child;
    return CUDA_SUCCESS;
}

#if DRIVER >= 12040
CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *size) {
    Function *known = (Function *)function;
    if (index >= known->count) return CUDA_ERROR_INVALID_VALUE;
    *offset = known->offsets[index], *size = known->sizes[index];
    return CUDA_SUCCESS;
}

CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *size) {
    return cuFuncGetParamInfo((CUfunction)kernel, index, offset, size);
}
#endif

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr address) {
    for (size_t each = 0; each < memory_count; each++) {
        Memory *memory = &memories[each];
        if (address < memory->base || address >= memory->base + memory->size) continue;
        switch (attribute) {
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(unsigned *)data = memory->type; break;
        case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned *)data = memory->managed; break;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)data = memory->ordinal; break;
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)data = memory->base; break;
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)data = memory->size; break;
        default: return CUDA_ERROR_INVALID_VALUE;
        }
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}
