// Samples packed for products with coefficients, block after block: kept from the first pass on, or from when their
// moments were summed; or made anew in each pass.
#pragma once

#include <cstdint>
#include <vector>

#include "../common/buffer.hpp"
#include "../kernels/table.hpp"
#include "sample_block.hpp"
#include "slabs.hpp"

namespace linattn {

// One block. Rows have `samples` columns, a multiple of sample_quantum; columns without a sample are zero.
struct PackedSamples {
  std::int64_t samples = 0;
  Buffer s;              // chosen pairs as the right factor of a product
  FloatBuffer narrow_s;  // the same in float32; empty until it is asked for
  Buffer queries;        // last, causal: z of chosen queries; all: pairs S_lm of chosen queries, as an upper triangle
  Buffer weights;        // one row
  Buffer y;              // d_out rows (last, causal)
};

class SampleStore {
 public:
  // The data stays with the caller.
  SampleStore(const Kernels& kernels, const Samples& data, bool keep);

  const Kernels& kernels() const { return kernels_; }
  const Samples& data() const { return data_; }
  std::int64_t blocks() const { return blocks_; }
  // The sums of a pass through all blocks; there is one pass at a time.
  SlabSums& sums() { return sums_; }

  // Keeps block b, which `filler` has completed from the same samples. No two threads may be at the same block.
  void put(std::int64_t b, const SampleBlock& block, const BlockFiller& filler) {
    if (keep_) pack(block, filler, kept_[static_cast<std::size_t>(b)]);
  }

  // To be called after a pass through all blocks: from now on they are there, if they are to be kept.
  void set_complete() { complete_ = keep_; }

  // Are the samples kept, and has there been a first pass?
  bool complete() const { return complete_; }

 private:
  friend class SampleReader;
  void pack(const SampleBlock& block, const BlockFiller& filler, PackedSamples& packed) const;

  const Kernels& kernels_;
  const Samples& data_;
  Samples filled_;  // for all positions without targets: they are read where residuals are taken
  bool keep_, complete_ = false;
  std::int64_t blocks_;
  std::vector<PackedSamples> kept_;
  SlabSums sums_;
};

// Goes through consecutive blocks. One per thread; no two may be at the same block.
class SampleReader {
 public:
  // With `rows`, blocks are always made from the tokens, so that rows() can be asked for.
  SampleReader(SampleStore& store, bool rows);

  void seek(std::int64_t block);
  // The next block; valid until the next call. Throws NonFinite.
  const PackedSamples& next();
  // s of that block in float32, made on first use and kept; of a store that is complete(). What is too large for
  // float32 becomes infinite.
  const float* narrow_s() const;
  // The same samples before they were packed.
  const SampleBlock& rows() const { return block_; }

 private:
  SampleStore& store_;
  bool make_;
  BlockFiller filler_;
  SampleBlock block_;
  PackedSamples passing_;
  Buffer carry_, next_carry_;
  std::int64_t next_ = 0;
};

}  // namespace linattn
