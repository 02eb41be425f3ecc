// Barriers that ptxas refuses, so that only the processor ever sees them.
__global__ void odd_count(int bad) { FUSIOND_BARRIER(1, bad ? 40 : 96); }
__global__ void no_count(int bad) { FUSIOND_BARRIER(1, bad ? 0 : 96); }
__global__ void no_such_id(int bad) { FUSIOND_BARRIER(bad ? 16 : 1, 96); }
