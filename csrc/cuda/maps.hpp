// A sample's S makes a map of the query, f = maps z; applied here, and multiplied with S.
#pragma once

#include "tokens.hpp"

namespace linattn::cuda {

// f[i, a] = sum_l maps[i, (a,l)] z[i, l]; with targets, y[i, a] minus that        samples x outputs
// `own`: z[i, (a,l)] is a row for each output.
void contract(const double* maps, const double* z, bool own, const double* targets, std::int64_t outputs,
              std::int64_t queries, std::int64_t samples, double* f, cudaStream_t stream);

// out[i, (g,j)] = sum_k S_i[j,k] in[i, (g,k)]        samples x (groups d), S_i packed: s (samples x pair_count(d))
// `same`: in (groups d) is one row for all samples.
void times_second_moment(const double* s, const double* in, bool same, std::int64_t groups, std::int64_t d,
                         std::int64_t samples, double* out, cudaStream_t stream);

// out[row, a] = sum_l maps[i, (a,l)] z_row[l] for every row of sequence first + i        out: all rows x outputs
void apply_maps(const Tokens& tokens, const double* maps, std::int64_t outputs, std::int64_t first,
                std::int64_t sequences, double* out, cudaStream_t stream);

}  // namespace linattn::cuda
