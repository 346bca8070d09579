// All kernels, compiled once per instruction set. CMake defines
//   LINATTN_ISA_NAME      namespace and name of the table
//   LINATTN_VECTOR_BYTES  16 (SSE2, NEON), 32 (AVX2) or 64 (AVX-512)
// and gives the compiler that set's flags.
#include <cstdint>

#include "../common/block_sizes.hpp"
#include "../common/index.hpp"
#include "register_tiles.hpp"
#include "table.hpp"

#define LINATTN_TEXT_(x) #x
#define LINATTN_TEXT(x) LINATTN_TEXT_(x)

namespace linattn {
namespace LINATTN_ISA_NAME {
namespace {

// Each after what it builds on.
#include "lanes.hpp"

#include "answers.hpp"
#include "chosen_pairs.hpp"
#include "gather.hpp"
#include "householder.hpp"
#include "layer.hpp"
#include "peak.hpp"
#include "product.hpp"
#include "running_memory.hpp"
#include "side_by_side.hpp"

#include "maps.hpp"
#include "row_products.hpp"
#include "token_moments.hpp"

#include "lane_samples.hpp"
#include "lane_systems.hpp"
#include "second_moment.hpp"
#include "small_system.hpp"
#include "symmetric_rows.hpp"
#include "triangle.hpp"

}  // namespace

template <typename T>
constexpr ProductKernels<T> product_kernels = {static_cast<int>(tile_rows<T>),
                                               static_cast<int>(tile_columns),
                                               pack_left_products<T>,
                                               pack_left_rows<T>,
                                               pack_right_products<T>,
                                               pack_right_rows<T>,
                                               multiply<T>,
                                               multiply_to_columns<T>,
                                               pack_matrix<T>,
                                               apply_packed<T>};

extern const Kernels table;
const Kernels table = {LINATTN_TEXT(LINATTN_ISA_NAME),
                       static_cast<int>(lanes),
                       gather<float>,
                       gather<double>,
                       sequence_moments,
                       lane_sequences,
                       prefix_moments,
                       chosen_prefixes,
                       running_memory,
                       pack_groups,
                       product_kernels<double>,
                       product_kernels<float>,
                       multiply_rows_together,
                       multiply_rows<true>,
                       multiply_row_pairs,
                       lane_prefixes,
                       squared_error_lanes,
                       apply,
                       apply_symmetric,
                       contract,
                       answer_sequence,
                       add_token,
                       add_outer,
                       factor_triangle,
                       substitute,
                       unpack_panel,
                       factor_small,
                       squared_inverse,
                       solve_small,
                       symmetric_times,
                       inverse_from_factor,
                       equilibrate_lanes,
                       factor_lanes,
                       squared_inverse_lanes,
                       solve_lanes,
                       solve_lower_abreast,
                       solve_upper_abreast,
                       multiply_lower_abreast,
                       multiply_upper_abreast,
                       inner_products_abreast,
                       add_combination_abreast,
                       tridiagonalise,
                       multiply_adds};

}  // namespace LINATTN_ISA_NAME
}  // namespace linattn
