// All kernels, compiled once per instruction set. CMake defines
//   LINATTN_ISA_NAME      namespace and name of the table
//   LINATTN_VECTOR_BYTES  16 (SSE2, NEON), 32 (AVX2) or 64 (AVX-512)
// and gives the compiler that set's flags.
#include <cstdint>

#include "../core/index.hpp"
#include "../core/kernels.hpp"
#include "block_sizes.hpp"

#define LINATTN_TEXT_(x) #x
#define LINATTN_TEXT(x) LINATTN_TEXT_(x)

namespace linattn {
namespace LINATTN_ISA_NAME {
namespace {

#include "lanes.hpp"

#include "gather.hpp"
#include "layer.hpp"
#include "maps.hpp"
#include "peak.hpp"
#include "product.hpp"
#include "chosen_pairs.hpp"
#include "second_moment.hpp"

}  // namespace

extern const Kernels table;
const Kernels table = {LINATTN_TEXT(LINATTN_ISA_NAME),
                       static_cast<int>(lanes),
                       LINATTN_TILE_ROWS,
                       LINATTN_TILE_COLUMNS,
                       gather<float>,
                       gather<double>,
                       sequence_moments,
                       second_moment,
                       prefix_moments,
                       chosen_prefixes,
                       {pack_products<double>, pack_rows<double>, multiply<double>},
                       {pack_products<float>, pack_rows<float>, multiply<float>},
                       apply_packed,
                       apply,
                       apply_symmetric,
                       contract,
                       multiply_adds};

}  // namespace LINATTN_ISA_NAME
}  // namespace linattn
