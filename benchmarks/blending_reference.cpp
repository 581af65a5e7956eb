// The rule of Megatron-LM's build_blending_indices (megatron/core/datasets/helpers.cpp), written
// again: each sample comes from the source that is furthest behind its weight, the first of equals.
// offset: what is added to a sample's number for the target; Megatron's is 0, corrected it is 1.

#include <algorithm>
#include <cstdint>
#include <vector>

extern "C" void blend(int16_t *sources, int64_t *numbers, const double *weights,
                      int32_t count, int64_t size, int64_t offset) {
  std::vector<int64_t> given(count, 0);
  for (int64_t sample = 0; sample < size; ++sample) {
    const double target = std::max(static_cast<double>(sample + offset), 1.0);
    int32_t behind = 0;
    double most = weights[0] * target - static_cast<double>(given[0]);
    for (int32_t source = 1; source < count; ++source) {
      const double error = weights[source] * target - static_cast<double>(given[source]);
      if (error > most) {
        most = error;
        behind = source;
      }
    }
    sources[sample] = static_cast<int16_t>(behind);
    numbers[sample] = given[behind]++;
  }
}
