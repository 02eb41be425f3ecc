// One level of breadth-first search as Rodinia has it: a struct for nodes, flags as bool, a queue tail by atomics in shared memory.
#define MAX_THREADS_PER_BLOCK 256
struct Node { int starting; int no_of_edges; };
__global__ void Kernel(Node* g_graph_nodes, int* g_graph_edges, bool* g_graph_mask, bool* g_updating_graph_mask, bool* g_graph_visited, int* g_cost, int* found, int no_of_nodes)
{
    __shared__ int tail;
    int tid = blockIdx.x * blockDim.x + threadIdx.x;
    if (threadIdx.x == 0) tail = 0;
    __syncthreads();
    if (tid < no_of_nodes && g_graph_mask[tid]) {
        for (int i = g_graph_nodes[tid].starting; i < (g_graph_nodes[tid].no_of_edges % 5 + g_graph_nodes[tid].starting); i++) {
            int id = g_graph_edges[i];
            if (!g_graph_visited[id]) {
                g_cost[id] = 1;
                g_updating_graph_mask[id] = true;
                atomicAdd(&tail, 1);
            }
        }
    }
    __syncthreads();
    if (threadIdx.x) return;
    found[blockIdx.x] = tail;
}
