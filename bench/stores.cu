// What the end of a tile costs on Hopper: 8 warps have 128 x 256 float32 in the tensor core's fragments and bring them to
// memory, in eight ways. Between two tiles they sleep for as long as a product would take. Cycles of an end, and time.
//
//     nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a bench/stores.cu -o stores && ./stores
#include <cuda.h>
#include <cuda_runtime.h>
#include <cudaTypedefs.h>

#include <algorithm>
#include <cstdio>
#include <vector>

constexpr int ROWS = 128, COLUMNS = 256, IMAGES = 128, ACROSS = 62, BLOCKS = 132, SHARED = 200000, LAUNCHES = 9;
// none: nothing leaves the registers. box: shared memory is all they reach. pairs: 8 bytes a lane, 8 rows a warp; turned: by
// 8 columns where a row begins within a sector. fours: 16 bytes, after an exchange with the neighbour. lines: bulk copies
// of one row's 1 KB. tensor: tensor copies of 8 rows. group: bulk copies of 64 KB (to places of their own, not to rows).
enum way { NONE, BOX, PAIRS, TURNED, FOURS, LINES, TENSOR, GROUP };
const char* const NAMES[] = {"none", "box", "pairs", "turned", "fours", "lines", "tensor", "group"};
struct work {
  float* out;
  const float* bias;
  long pitch;       // elements from row to row
  int idle, apart;  // cycles between tiles; between the first blocks' beginning and the last ones'
  long long* took;
};

__device__ unsigned address(const void* p) { return unsigned(__cvta_generic_to_shared(p)); }
__device__ void sleep_for(long long cycles) {
  const long long begin = clock64();
  while (clock64() - begin < cycles) __nanosleep(100);
}
__device__ void store(float* to, float2 v) {
  asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(v.x), "f"(v.y) : "memory");
}
__device__ void store(float* to, float4 v) {
  asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}
__device__ void copy(float* to, const float* from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(address(from)), "r"(bytes) : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ void copy(const CUtensorMap& map, int column, int row, const float* from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map), "r"(address(from)),
               "r"(column), "r"(row) : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

template <way WAY> __global__ void __launch_bounds__(256, 1) ends_of_tiles(work w, const __grid_constant__ CUtensorMap map) {
  extern __shared__ __align__(1024) float shared[];
  constexpr int PITCH = WAY == TENSOR || WAY == GROUP ? COLUMNS : COLUMNS + 8, HALF = 8 * PITCH;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  float sums[2][COLUMNS / 4];
#pragma unroll
  for (int i = 0; i < COLUMNS / 2; ++i) sums[i % 2][i / 2] = i + threadIdx.x;
  long long cycles = 0;
  sleep_for((long long)w.apart * blockIdx.x / BLOCKS);
  for (int tile = blockIdx.x; tile < IMAGES * ACROSS; tile += BLOCKS) {
    sleep_for(w.idle);
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; ++i) asm volatile("" : "+f"(sums[i % 2][i / 2]));
    __syncthreads();
    const long long begin = clock64();
    const int column = tile % ACROSS * COLUMNS;
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      const long top = tile / ACROSS * ROWS + warp * 16 + half * 8;
      const float bias = w.bias[warp * 16 + half * 8 + g];
      float* const to = w.out + (top + g) * w.pitch + column;
      float v[COLUMNS / 4];
#pragma unroll
      for (int i = 0; i < COLUMNS / 4; ++i) v[i] = fmaxf((half ? sums[1][i] : sums[0][i]) * 1.0001f + bias, 0.f);
      if constexpr (WAY == NONE) {
        float all = 0;
#pragma unroll
        for (int i = 0; i < COLUMNS / 4; ++i) all += v[i];
        if (all == 1.2345f) to[0] = all;
      } else if constexpr (WAY == PAIRS || WAY == TURNED) {
        const int before = reinterpret_cast<unsigned long>(to) / 4 % 8;
        const bool ahead = WAY == TURNED && before > 0 && before + t * 2 < 8;
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; ++j) {
          const int next = (j + 1) % (COLUMNS / 8);
          store(to + t * 2 + (ahead ? next : j) * 8, ahead ? make_float2(v[next * 2], v[next * 2 + 1]) : make_float2(v[j * 2], v[j * 2 + 1]));
        }
      } else if constexpr (WAY == FOURS) {
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; j += 2) {
          const bool odd = t % 2;
          const float a = __shfl_xor_sync(~0u, odd ? v[j * 2] : v[j * 2 + 2], 1);
          const float b = __shfl_xor_sync(~0u, odd ? v[j * 2 + 1] : v[j * 2 + 3], 1);
          store(to + (j + odd) * 8 + t / 2 * 4, odd ? make_float4(a, b, v[j * 2 + 2], v[j * 2 + 3]) : make_float4(v[j * 2], v[j * 2 + 1], a, b));
        }
      } else {
        float* const box = shared + (half * 8 + warp) * HALF;
        asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");  // the copies of the half before the last one
        WAY == GROUP ? __syncthreads() : __syncwarp();
        // Rows of 256 share banks: so they are shifted, in an order that is not the result's. That costs what a swizzle would.
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; ++j)
          *reinterpret_cast<float2*>(box + g * PITCH + (j * 8 + (PITCH == COLUMNS ? g * 8 : 0)) % COLUMNS + t * 2) = make_float2(v[j * 2], v[j * 2 + 1]);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        WAY == GROUP ? __syncthreads() : __syncwarp();
        if (WAY == LINES && lane < 8) copy(w.out + (top + lane) * w.pitch + column, box + lane * PITCH, COLUMNS * 4);
        if (WAY == TENSOR && lane == 0) copy(map, column, int(top), box);
        if (WAY == GROUP && threadIdx.x == 0) copy(w.out + (tile * 2l + half) * (ROWS / 2 * COLUMNS), box, ROWS / 2 * COLUMNS * 4);
      }
    }
    cycles += clock64() - begin;
  }
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  if (threadIdx.x == 0) w.took[blockIdx.x] = cycles;
}

template <way WAY> void measure(const work& w, const CUtensorMap& map) {
  cudaFuncSetAttribute(ends_of_tiles<WAY>, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
  cudaEvent_t from, to;
  cudaEventCreate(&from), cudaEventCreate(&to);
  std::vector<float> times(LAUNCHES);
  for (float& time : times) {
    cudaEventRecord(from);
    ends_of_tiles<WAY><<<BLOCKS, 256, SHARED>>>(w, map);
    cudaEventRecord(to);
    cudaEventSynchronize(to);
    cudaEventElapsedTime(&time, from, to);
  }
  std::sort(times.begin(), times.end());
  long long took[BLOCKS], all = 0;
  cudaMemcpy(took, w.took, sizeof took, cudaMemcpyDeviceToHost);
  for (long long cycles : took) all += cycles;
  std::printf("%-7s rows of %ld, %5d cycles apart: %6.0f cycles an end, %4.0f us (%.0f to %.0f), %s\n", NAMES[WAY], w.pitch,
              w.apart, double(all) / (IMAGES * ACROSS), times[LAUNCHES / 2] * 1e3, times[0] * 1e3, times[LAUNCHES - 1] * 1e3,
              cudaGetErrorString(cudaGetLastError()));
}

int main() {
  constexpr long MOST = 15880;
  work w{};
  float* bias;
  cudaMalloc(&w.out, long(IMAGES) * ROWS * MOST * 4), cudaMalloc(&bias, ROWS * 4), cudaMalloc(&w.took, BLOCKS * 8);
  cudaMemset(bias, 0, ROWS * 4);
  w.bias = bias, w.idle = 9200;
  void* encode = nullptr;
  cudaDriverEntryPointQueryResult found;
  cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &found);
  for (long pitch : {MOST, 15876l})
    for (int apart : {0, 13000}) {
      w.pitch = pitch, w.apart = apart;
      CUtensorMap map;
      const cuuint64_t size[] = {cuuint64_t(pitch), IMAGES * ROWS}, step[] = {cuuint64_t(pitch * 4)};
      const cuuint32_t box[] = {COLUMNS, 8}, each[] = {1, 1};
      const CUresult made = reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(encode)(
          &map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, w.out, size, step, box, each, CU_TENSOR_MAP_INTERLEAVE_NONE,
          CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
      if (made != CUDA_SUCCESS) return std::printf("no tensor map: %d\n", int(made)), 1;
      measure<NONE>(w, map), measure<BOX>(w, map), measure<PAIRS>(w, map), measure<TURNED>(w, map), measure<FOURS>(w, map);
      measure<LINES>(w, map), measure<TENSOR>(w, map), measure<GROUP>(w, map);
    }
}
