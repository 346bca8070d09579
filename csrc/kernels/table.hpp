// The table of kernels that one instruction set provides: the one door through which core/ and softmax/ see kernels/
// (isa.hpp, for the bindings and for programs, chooses a table). The kernels check nothing; those who call them do.
//
// Everything is vectorised over samples: a row holds one quantity for consecutive samples, "lanes" of them to a
// vector. Row strides and sample counts are multiples of sample_quantum, rows are aligned to 64 bytes, and columns
// without a sample are zero.
#pragma once

#include <cstdint>

#include "../common/block_sizes.hpp"
#include "../common/sequence.hpp"

namespace linattn {

// Samples are padded to a multiple of the widest vector of float32, so that block shapes are the same for every table.
constexpr std::int64_t sample_quantum = 16;
// Doubles in the widest vector.
constexpr std::int64_t most_lanes = 8;
// Vectors that a triangle is applied to at once: the widest vector has one entry of each.
constexpr std::int64_t abreast = most_lanes;
// Vectors that multiply_adds works at side by side.
constexpr int independent_vectors = 12;

// Samples rounded up to what the kernels take.
static inline std::int64_t padded_samples(std::int64_t count) {
  return (count + sample_quantum - 1) / sample_quantum * sample_quantum;
}

// Which two rows a product row multiplies: left[x] * right[y].
struct RowPair {
  std::int32_t x, y;
};

// Memory that will be read next: runs of bytes.
struct Ahead {
  const void* starts[most_lanes] = {};
  std::int64_t runs = 0, bytes = 0;
};

// The matrix product with samples as inner dimension; products and sums within a block in T, totals in float64. Packed
// rows are shrink[i] times row i (one where shrink is null), where row i is a plain row, or left[pairs[i].x] *
// right[pairs[i].y].
template <typename T>
struct ProductKernels {
  int tile_rows, tile_columns;  // register tile; task_rows is a multiple of tile_rows

  using PackRows = void (*)(const double* source, std::int64_t stride, std::int64_t rows, std::int64_t samples,
                            const double* shrink, T* out);
  // As the left factor: rows are rounded up to a vector of T. `groups` are the right rows as pack_groups leaves them,
  // which makes packing faster where `lanes` pairs are one row with a group; null: none.
  void (*pack_left_products)(const double* left, const double* right, std::int64_t stride, const double* groups,
                             const RowPair* pairs, std::int64_t rows, std::int64_t samples, const double* shrink,
                             T* out);
  PackRows pack_left_rows;
  // As the right factor.
  void (*pack_right_products)(const double* left, const double* right, std::int64_t stride, const RowPair* pairs,
                              std::int64_t rows, std::int64_t samples, const double* shrink, T* out);
  PackRows pack_right_rows;
  // c[i][j] += row_scale[i] * column_scale[j] * sum over samples of a[i] * b[j], a packed as left and b as right
  // factor, no scales where they are null. Where first_columns is given it does not decrease, and row i has only the
  // columns from first_columns[i] on.
  void (*multiply)(const T* a, std::int64_t rows, const T* b, std::int64_t columns, std::int64_t samples,
                   const double* row_scale, const double* column_scale, const std::int64_t* first_columns,
                   double* const* c);
  // The same for all columns, into columns: c[j * stride + i] += row_scale[i] * sum over samples of a[i] * b[j].
  void (*multiply_to_columns)(const T* a, std::int64_t rows, const T* b, std::int64_t columns, std::int64_t samples,
                              const double* row_scale, double* c, std::int64_t stride);

  // The rows (a, l) of coefficients[a][u][l], packed for apply_packed: as many rows as a vector of T rounds them up to.
  void (*pack_matrix)(const double* coefficients, std::int64_t outputs, std::int64_t pairs, std::int64_t queries,
                      T* out);
  // out (rows x samples) = matrix (rows x pairs, packed) times s (pairs x samples), packed as right factor. `sums` has
  // room for as much, rows rounded up to most_lanes.
  void (*apply_packed)(const T* matrix, std::int64_t rows, const T* packed, std::int64_t pairs, std::int64_t samples,
                       double* sums, double* out);
};

// Sequences side by side, with a target for every token or none (d_out = 0). With chosen pairs, s has a row for each of
// them, and one more that is zero, or NaN where a token is not finite.
struct SequenceColumns {
  const Sequence* tokens;
  const Sequence* targets;
  Scalar token_scalar, target_scalar;
  std::int64_t count, d, d_out;
  std::int64_t known;              // sequences in `tokens`: those past `count` come next and are only asked for
  const RowPair* pairs = nullptr;  // null: all
  std::int64_t pairs_chosen = 0;
};

// Tokens (with their targets) turned into vectors at a time.
static inline std::int64_t chunk_tokens(std::int64_t d, std::int64_t d_out) {
  const std::int64_t largest = d > d_out ? d : d_out;
  return largest < chunk_numbers ? chunk_numbers / largest : 1;
}

// Doubles that sequence_moments works in: a chunk, and the sums of one vector of sequences.
static inline std::int64_t sequence_scratch(std::int64_t d, std::int64_t d_out) {
  return most_lanes * (chunk_tokens(d, d_out) * (d + d_out) + d * (d + 1) / 2 + d_out * d + d_out);
}

// A few keys b_t of one sequence with their values a_t and gates, rows of float64 that may be read a vector past their
// ends. With symmetric, keys and values are the same, and only the entries j <= k of a_t b_t' count.
struct KeyRows {
  const double *keys, *values;  // count rows of d_k_stride and d_v_stride doubles
  const double* gates;          // null: 1
  std::int64_t d_k, d_v, d_k_stride, d_v_stride, count;
  bool symmetric;
};

struct Kernels {
  const char* name;
  int lanes;  // doubles in a vector

  // out[(t - first) d + j][lane] = token t, coordinate j of sequences[lane]; zero past a sequence's end.
  // out has rows of `stride` doubles; lanes count .. width are zero.
  void (*gather_float32)(const Sequence* sequences, std::int64_t count, std::int64_t first, std::int64_t last,
                         std::int64_t d, std::int64_t width, double* out, std::int64_t stride);
  void (*gather_float64)(const Sequence* sequences, std::int64_t count, std::int64_t first, std::int64_t last,
                         std::int64_t d, std::int64_t width, double* out, std::int64_t stride);

  // For each sequence: s[(j,k)] = sum_t z_t[j] z_t[k], maps[(a,l)] = sum_t y_t[a] z_t[l], energy[a] = sum_t y_t[a]^2,
  // in rows of `stride`; columns count .. width are zero. scratch: sequence_scratch(d, d_out) doubles.
  void (*sequence_moments)(const SequenceColumns& in, std::int64_t width, double* scratch, double* s, double* maps,
                           double* energy, std::int64_t stride);

  // The same for `count` vectors of sequences of one length in C order, those of a lane one after the other from
  // in.tokens[lane] on, and z (d rows) = the last token of each.
  void (*lane_sequences)(const SequenceColumns& in, std::int64_t count, double* scratch, double* s, double* z,
                         std::int64_t stride);

  // s[(j,k)][i] = sum over columns first .. i of z[j] * z[k]; z and s have rows of `stride`.
  void (*prefix_moments)(const double* z, std::int64_t d, std::int64_t stride, std::int64_t first, std::int64_t last,
                         double* s);

  // The same for chosen pairs: s[i] = sums of z[pairs[i].x] * z[pairs[i].y].
  void (*chosen_prefixes)(const double* z, std::int64_t stride, const RowPair* pairs, std::int64_t count,
                          std::int64_t first, std::int64_t last, double* s);

  // after = before, multiplied with a gate and increased by a_t b_t' for one key after the other; row by row without
  // gaps, with room for a vector past the last.
  void (*running_memory)(const KeyRows& keys, const double* before, double* after);

  // out[(i / lanes) * samples + k][i % lanes] = row i at sample k.
  void (*pack_groups)(const double* source, std::int64_t stride, std::int64_t rows, std::int64_t samples, double* out);

  ProductKernels<double> float64;
  ProductKernels<float> float32;

  // c[i count + j] += sum over samples of left[pairs[i].x] * right[pairs[i].y] * columns[j], all in rows of
  // block_stride as they lie: faster than packing them where columns are few.
  void (*multiply_rows)(const double* left, const double* right, const RowPair* pairs, std::int64_t rows,
                        const double* columns, std::int64_t count, std::int64_t samples, double* c);

  // Samples of as many problems as a vector has lanes, each row a vector of problems after the other
  // (kernels/lane_samples.hpp). multiply_lanes is multiply_rows with a vector of sums in the place of each sum.
  void (*multiply_lanes)(const double* left, const double* right, const RowPair* pairs, std::int64_t rows,
                         const double* columns, std::int64_t count, std::int64_t samples, double* c,
                         const Ahead& ahead);
  // out[i] = left[pairs[i].x] * right[pairs[i].y], `count` vectors of each.
  void (*multiply_row_pairs)(const double* left, const double* right, const RowPair* pairs, std::int64_t rows,
                             std::int64_t count, std::int64_t stride, double* out);
  // s[i] = running sums of z[pairs[i].x] * z[pairs[i].y], anew after every `length` tokens, of which `position` have
  // passed; carry has the sums so far, before and after.
  void (*lane_prefixes)(const double* z, std::int64_t count, std::int64_t stride, std::int64_t length,
                        std::int64_t position, const RowPair* pairs, std::int64_t pair_total, double* carry, double* s);
  // sum (a vector) += sums of (y - sum over u, l of C[u][l] s_u z_l)^2, for C (q x k vectors).
  void (*squared_error_lanes)(const double* C, const double* s, std::int64_t q, const double* z, std::int64_t k,
                              const double* y, std::int64_t stride, std::int64_t count, double* sum);

  // out = matrix (rows x columns) times in, for each of `width` samples.
  void (*apply)(const double* matrix, std::int64_t rows, std::int64_t columns, const double* in, std::int64_t width,
                double* out);
  // out_h = S in_h for each of `count` vectors in R^d, with S given by its pairs s.
  void (*apply_symmetric)(const double* s, std::int64_t d, const double* in, std::int64_t count, std::int64_t width,
                          double* out);
  // out[a] = sum over l of matrix[a d + l] * z[l], each entry of the matrix a row of samples.
  void (*contract)(const double* matrix, std::int64_t rows, std::int64_t d, const double* z, std::int64_t width,
                   double* out);
  // y[t d_out + a] = sum over l of map[(a d + l) stride] z_t[l] for the tokens of one sequence; false, and nothing
  // done, where another way is faster.
  bool (*answer_sequence)(const Sequence& sequence, Scalar scalar, std::int64_t d, const double* map,
                          std::int64_t stride, std::int64_t d_out, double* y);
  // s[(j,k)] += z[j] z[k], for each of `width` samples.
  void (*add_token)(const double* z, std::int64_t d, std::int64_t width, double* s);
  // out[a columns + l] += sum over heads of left[h rows + a] right[h columns + l], rows of samples.
  void (*add_outer)(const double* left, const double* right, std::int64_t heads, std::int64_t rows,
                    std::int64_t columns, std::int64_t width, double* out);

  // Triangles of triangle_step columns, columns[k * triangle_step + j] = L[j][k] (kernels/triangle.hpp).
  // factor_triangle returns the number of pivots, up to n, before one that is not positive.
  std::int64_t (*factor_triangle)(double* columns, std::int64_t n, double* reciprocals);
  // x = L^-1 x for x of triangle_step rows of `width`, as pack_left_rows leaves one panel.
  void (*substitute)(const double* columns, const double* reciprocals, std::int64_t width, double* x);
  // rows[i * stride + k] = packed[k * width + i], triangle_step numbers k.
  void (*unpack_panel)(const double* packed, std::int64_t width, double* rows, std::int64_t stride);

  // Small systems A = U'U in rows of `stride` doubles, a multiple of most_lanes, zero past column n
  // (kernels/small_system.hpp). factor_small returns the number of pivots before one that is not positive.
  std::int64_t (*factor_small)(double* rows, std::int64_t n, std::int64_t stride, double* reciprocals);
  // ||U^-1||_F^2; inverse has room for U^-1.
  double (*squared_inverse)(const double* rows, const double* reciprocals, std::int64_t n, std::int64_t stride,
                            double* inverse);
  // x (stride doubles, zero from n on) becomes A^-1 x.
  void (*solve_small)(const double* rows, const double* reciprocals, std::int64_t n, std::int64_t stride, double* x);
  // Symmetric matrices in such rows, with all their entries (kernels/symmetric_rows.hpp): out (stride doubles) = M x;
  // and out = A^-1 from U^-1, of which the largest row sum of absolute values is returned.
  void (*symmetric_times)(const double* rows, std::int64_t n, std::int64_t stride, const double* x, double* out);
  double (*inverse_from_factor)(const double* inverse, std::int64_t n, std::int64_t stride, double* turned,
                                double* out);

  // The same with a system in each lane, entries vectors and rows of n of them (kernels/lane_systems.hpp).
  // upper = D (G + shift I) D, G's upper triangle at `places` of gram; D = scale, sums: n vectors; norm: ||.||_inf.
  void (*equilibrate_lanes)(const double* gram, const std::int64_t* places, std::int64_t n, const double* shift,
                            double* upper, double* scale, double* sums, double* norm);
  // Reciprocals are NaN or infinite in lanes where a pivot is not positive.
  void (*factor_lanes)(double* rows, std::int64_t n, double* reciprocals);
  // norm (a vector) = ||U^-1||_F^2; columns: 4 n vectors.
  void (*squared_inverse_lanes)(const double* rows, const double* reciprocals, std::int64_t n, double* columns,
                                double* norm);
  void (*solve_lanes)(const double* rows, const double* reciprocals, std::int64_t n, double* x);

  // x = L^-1 x, L'^-1 x, L x and L'x for `abreast` vectors, x (n x abreast), and L the lower triangle of factor (n x
  // n).
  using ApplyTriangle = void (*)(const double* factor, std::int64_t n, double* x);
  ApplyTriangle solve_lower, solve_upper, multiply_lower, multiply_upper;
  // out (abreast x abreast, aligned as rows are) = a'b for a and b (n x abreast).
  void (*inner_products)(const double* a, const double* b, std::int64_t n, double* out);
  // x += factor v H for x and v (n x abreast), H (abreast x abreast).
  void (*add_combination)(const double* v, const double* H, double factor, std::int64_t n, double* x);
  // The tridiagonal form of a symmetric matrix A (n x n), n a multiple of most_lanes (kernels/householder.hpp).
  void (*tridiagonalise)(double* A, std::int64_t n, double* diagonal, double* beside, double* v, double* w);

  // independent_vectors of multiply-adds a round and nothing else: the machine's peak.
  double (*multiply_adds)(std::int64_t rounds);
};

}  // namespace linattn
