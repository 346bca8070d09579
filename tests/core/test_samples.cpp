// Sums over samples, and layers, against their definitions.
#include "../../csrc/core/evaluation.hpp"
#include "../../csrc/core/moments.hpp"
#include "../../csrc/core/normal_equations.hpp"
#include "../../csrc/core/sequence_group.hpp"
#include "problem.hpp"
#include "tests.hpp"

namespace linattn {

namespace {

// The numbers 0 .. count - 1.
std::vector<std::int64_t> all_numbers(std::int64_t count) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) numbers[std::size_t(i)] = i;
  return numbers;
}

// Every second pair and all but the first query, as far as there are any.
Selection some_features(std::int64_t d) {
  Selection selection;
  for (std::int64_t u = 0; u < pair_count(d); u += 2) selection.pairs.push_back(u);
  for (std::int64_t l = d > 1 ? 1 : 0; l < d; ++l) selection.queries.push_back(l);
  return selection;
}

// One pair, of which alone S is then formed, and the last query.
Selection one_pair(std::int64_t d, Positions positions) {
  Selection selection;
  selection.pairs = {pair_count(d) / 2};
  selection.queries = {d - 1};
  selection.form_few(d, positions, /*with_squares=*/true);
  return selection;
}

// The samples of a problem as the core takes them, and the features that take part, written out.
struct ChosenSamples {
  ChosenSamples(const Problem& problem, Positions positions, const Selection* selection)
      : tokens(problem.sequences()),
        targets(problem.target_rows(positions)),
        data{tokens, &targets, problem.weights.data(), positions, selection},
        pairs(selection != nullptr ? selection->pairs : all_numbers(pair_count(problem.d))),
        queries(selection != nullptr ? selection->queries : all_numbers(problem.d)) {}
  ChosenSamples(const ChosenSamples&) = delete;  // the samples point into it

  const Tokens tokens, targets;
  const Samples data;
  const std::vector<std::int64_t> pairs, queries;
};

void test_moments(const Kernels& kernels, const Problem& problem, Positions positions, Precision precision,
                  const Selection* selection = nullptr) {
  const std::int64_t d = problem.d, d_out = problem.d_out;
  const ChosenSamples chosen(problem, positions, selection);
  const Samples& data = chosen.data;
  const auto& pairs = chosen.pairs;
  const auto& queries = chosen.queries;
  const auto q = static_cast<std::int64_t>(pairs.size()), k = static_cast<std::int64_t>(queries.size());

  std::vector<double> gram(std::size_t(gram_size(data))), cross(std::size_t(d_out * k * q)),
      energy(static_cast<std::size_t>(d_out)), sizes(selection != nullptr ? std::size_t(q * k) : 0);
  auto expected_gram = gram, expected_cross = cross, expected_energy = energy, expected_sizes = sizes;
  problem.for_each_sample(positions, [&](const Sample& x, double w, std::int64_t row) {
    const double* y = problem.targets.data() + row * d_out;
    const auto s = [&](std::int64_t u) { return x.s[std::size_t(pairs[std::size_t(u)])]; };
    const auto z = [&](std::int64_t l) { return x.z[std::size_t(queries[std::size_t(l)])]; };
    for (std::int64_t u = 0; u < q; ++u) {
      for (std::int64_t v = u; v < q; ++v) {
        for (Pair lm{0, 0}; lm.j < k; lm = next_pair(lm, k)) {
          const std::int64_t c = pair_index(lm.j, lm.k, k);
          const double entry = w * s(u) * s(v) * z(lm.j) * z(lm.k);
          if (!data.triples()) {
            expected_gram[std::size_t(pair_index(u, v, q) * pair_count(k) + c)] += entry;
          } else if (c >= v) {
            expected_gram[std::size_t(triple_start(u, v, q) + c - v)] += entry;
          }
        }
      }
    }
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const Pair pair = pair_at(pairs[i / std::size_t(k)], d);
      const double left = x.s[std::size_t(pair_index(pair.j, pair.j, d))],
                   right = x.s[std::size_t(pair_index(pair.k, pair.k, d))];
      expected_sizes[i] += w * left * right * std::pow(z(std::int64_t(i) % k), 2);
    }
    for (std::int64_t a = 0; a < d_out; ++a) {
      for (std::int64_t l = 0; l < k; ++l) {
        for (std::int64_t u = 0; u < q; ++u) expected_cross[std::size_t((a * k + l) * q + u)] += w * y[a] * z(l) * s(u);
      }
      expected_energy[std::size_t(a)] += w * y[a] * y[a];
    }
  });

  const auto accumulate = [&](int threads, std::vector<double>& g, std::vector<double>& c, std::vector<double>& e,
                              std::vector<double>& m) {
    return accumulate_moments(kernels, data, precision, threads, [](std::int64_t) {},
                              {g.data(), c.data(), e.data(), selection != nullptr ? m.data() : nullptr});
  };
  auto gram_3 = gram, cross_3 = cross, energy_3 = energy, sizes_3 = sizes;
  accumulate(2, gram, cross, energy, sizes);
  accumulate(3, gram_3, cross_3, energy_3, sizes_3);
  check(gram == gram_3 && cross == cross_3 && energy == energy_3 && sizes == sizes_3, "moments on three threads",
        kernels.name, d, problem.count());
  const double tolerance = precision == Precision::mixed ? 1e-5 : 1e-12;
  check(close(gram, expected_gram, tolerance), "gram", kernels.name, d, problem.count());
  check(close(cross, expected_cross, 1e-12), "cross", kernels.name, d, problem.count());
  check(close(energy, expected_energy, 1e-12), "energy", kernels.name, d, problem.count());
  check(close(sizes, expected_sizes, 1e-12), "sizes of summands", kernels.name, d, problem.count());
}

// S of tokens that lie side by side against S of the same tokens with a gap after each, which takes another path: equal
// in every bit, for sequences of one length and of many, longer than a chunk too, and nothing past the last token read.
template <typename T>
void test_forms_of_tokens(const Kernels& kernels, Scalar scalar, std::int64_t d,
                          const std::vector<std::int64_t>& lengths, std::mt19937& random) {
  const auto count = static_cast<std::int64_t>(lengths.size()), width = padded_samples(count), q = pair_count(d);
  std::vector<std::vector<T>> close_by, apart;
  std::vector<Sequence> close_sequences, apart_sequences;
  for (const std::int64_t length : lengths) {
    const std::vector<double> numbers = draw(length * d, random);
    close_by.emplace_back(numbers.begin(), numbers.end());  // memory of its own, which a sanitizer watches
    apart.emplace_back(std::size_t(length * (d + 1)), std::nan(""));
    for (std::int64_t i = 0; i < length * d; ++i) {
      apart.back()[std::size_t(i / d * (d + 1) + i % d)] = close_by.back()[std::size_t(i)];
    }
    close_sequences.push_back({close_by.back().data(), length, d, 1});
    apart_sequences.push_back({apart.back().data(), length, d + 1, 1});
  }
  const auto s_of = [&](const std::vector<Sequence>& sequences) {
    const Tokens tokens = Tokens::list(sequences, scalar, d);
    SequenceGroup group(kernels, tokens);
    group.select(0, count);
    const Buffer s(q * width);
    group.second_moments(s.data(), width);
    return std::vector<double>(s.data(), s.data() + q * width);
  };
  check(s_of(close_sequences) == s_of(apart_sequences), "S of two forms of tokens", kernels.name, d, count);
}

void test_forms_of_tokens(const Kernels& kernels, std::mt19937& random) {
  for (std::int64_t d = 1; d < 20; ++d) {
    for (const std::vector<std::int64_t>& lengths :
         {std::vector<std::int64_t>(21, 12), {9, 9, 9, 9, 10, 9, 9, 8, 8, 8, 30}, {300, 300, 300, 40}}) {
      test_forms_of_tokens<double>(kernels, Scalar::float64, d, lengths, random);
      test_forms_of_tokens<float>(kernels, Scalar::float32, d, lengths, random);
    }
  }
}

// Of one problem after the other: the sums of all at once, and the errors of coefficients sample by sample.
void test_serial_moments(const Kernels& kernels, const Problem& problem, Positions positions, std::mt19937& random,
                         const Selection* selection = nullptr) {
  const std::int64_t d = problem.d, d_out = problem.d_out;
  const ChosenSamples chosen(problem, positions, selection);
  const auto q = chosen.data.pairs(), k = chosen.data.queries();
  std::vector<double> gram(std::size_t(gram_size(chosen.data))), cross(std::size_t(d_out * k * q)),
      energy(static_cast<std::size_t>(d_out));
  auto gram_alone = gram, cross_alone = cross, energy_alone = energy;
  accumulate_moments(kernels, chosen.data, Precision::float64, 1, [](std::int64_t) {},
                     {gram.data(), cross.data(), energy.data()});
  SerialMoments serial(kernels, chosen.data);
  for (int time = 0; time < 2; ++time) {  // what is left of a problem does not enter the next
    std::fill(gram_alone.begin(), gram_alone.end(), 0.0);
    std::fill(cross_alone.begin(), cross_alone.end(), 0.0);
    std::fill(energy_alone.begin(), energy_alone.end(), 0.0);
    serial.add({gram_alone.data(), cross_alone.data(), energy_alone.data()});
    check(close(gram_alone, gram, 1e-12), "gram of one problem", kernels.name, d, problem.count());
    check(close(cross_alone, cross, 1e-12), "cross of one problem", kernels.name, d, problem.count());
    check(close(energy_alone, energy, 1e-12), "energy of one problem", kernels.name, d, problem.count());
  }

  const std::vector<double> C = draw(d_out * q * k, random);
  std::vector<double> expected(static_cast<std::size_t>(d_out)), found(expected);
  problem.for_each_sample(positions, [&](const Sample& x, double w, std::int64_t row) {
    for (std::int64_t a = 0; a < d_out; ++a) {
      double rest = problem.targets[std::size_t(row * d_out + a)];
      for (std::int64_t i = 0; i < q * k; ++i) {
        rest -= C[std::size_t(a * q * k + i)] * x.s[std::size_t(chosen.pairs[std::size_t(i / k)])] *
                x.z[std::size_t(chosen.queries[std::size_t(i % k)])];
      }
      expected[std::size_t(a)] += w * rest * rest;
    }
  });
  serial.squared_error(C.data(), found.data());
  check(close(found, expected, 1e-12), "squared error of one problem", kernels.name, d, problem.count());
}

// The operator on coefficients against its definition, sample by sample, with samples kept and made anew.
void test_normal_equations(const Kernels& kernels, const Problem& problem, Positions positions, std::mt19937& random,
                           const Selection* selection = nullptr) {
  const std::int64_t d = problem.d, d_out = problem.d_out;
  const ChosenSamples chosen(problem, positions, selection);
  const Samples& data = chosen.data;
  const auto& pairs = chosen.pairs;
  const auto& queries = chosen.queries;
  const std::size_t q = pairs.size(), k = queries.size(), p = q * k, outputs = std::size_t(d_out);

  const std::vector<double> c = draw(std::int64_t(outputs * p), random);
  std::vector<double> normal(outputs * p), energy(outputs), gradient(outputs * p), error(outputs);
  std::vector<double> of_pairs(q * q), of_queries(k * k), diagonal(p);
  problem.for_each_sample(positions, [&](const Sample& x, double w, std::int64_t row) {
    std::vector<double> h(p);
    for (std::size_t i = 0; i < p; ++i) h[i] = x.s[std::size_t(pairs[i / k])] * x.z[std::size_t(queries[i % k])];
    for (std::size_t a = 0; a < outputs; ++a) {
      double f = 0.0;
      for (std::size_t i = 0; i < p; ++i) f += c[a * p + i] * h[i];
      const double r = problem.targets[std::size_t(row) * outputs + a] - f;
      energy[a] += w * f * f;
      error[a] += w * r * r;
      for (std::size_t i = 0; i < p; ++i) {
        normal[a * p + i] += w * f * h[i];
        gradient[a * p + i] += w * r * h[i];
      }
    }
    for (std::size_t i = 0; i < p; ++i) diagonal[i] += w * h[i] * h[i];
    for (std::size_t i = 0; i < q * q; ++i) {
      of_pairs[i] += w * x.s[std::size_t(pairs[i / q])] * x.s[std::size_t(pairs[i % q])];
    }
    for (std::size_t i = 0; i < k * k; ++i) {
      of_queries[i] += w * x.z[std::size_t(queries[i / k])] * x.z[std::size_t(queries[i % k])];
    }
  });

  const auto silent = [](std::int64_t) {};
  for (const bool keep : {false, true}) {
    SampleStore store(kernels, data, keep);
    auto found = normal, squares = energy, found_pairs = of_pairs, found_queries = of_queries,
         found_diagonal = diagonal;
    for (int round = 0; round < 2; ++round) {
      normal_product(store, c.data(), d_out, 2, silent, found.data(), squares.data());
      check(close(found, normal, 1e-12) && close(squares, energy, 1e-12), "normal product", kernels.name, d,
            problem.count());
      if (keep) {
        narrow_product(store, c.data(), d_out, 2, silent, found.data(), squares.data());
        check(close(found, normal, 1e-5) && close(squares, energy, 1e-5), "normal product in float32", kernels.name, d,
              problem.count());
      }
      residual_gradient(store, c.data(), 2, silent, found.data(), squares.data());
      check(close(found, gradient, 1e-11) && close(squares, error, 1e-12), "gradient", kernels.name, d,
            problem.count());
      kronecker_factors(store, 2, silent, {found_pairs.data(), found_queries.data(), found_diagonal.data()});
      check(close(found_pairs, of_pairs, 1e-12) && close(found_queries, of_queries, 1e-12) &&
                close(found_diagonal, diagonal, 1e-12),
            "Kronecker factors", kernels.name, d, problem.count());
    }
  }
}

void test_layer(const Kernels& kernels, const Problem& problem, Positions positions, std::int64_t heads,
                std::int64_t d_out, std::mt19937& random) {
  const std::int64_t d = problem.d;
  const std::vector<double> v = draw(heads * d_out * d, random), q = draw(heads * d * d, random);
  std::vector<double> expected;
  problem.for_each_sample(positions, [&](const Sample& x, double, std::int64_t) {
    for (std::int64_t a = 0; a < d_out; ++a) {
      double y = 0.0;
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t j = 0; j < d; ++j) {
          for (std::int64_t k = 0; k < d; ++k) {
            const std::int64_t pair = j <= k ? pair_index(j, k, d) : pair_index(k, j, d);
            for (std::int64_t l = 0; l < d; ++l) {
              y += v[std::size_t((h * d_out + a) * d + j)] * x.s[std::size_t(pair)] *
                   q[std::size_t((h * d + k) * d + l)] * x.z[std::size_t(l)];
            }
          }
        }
      }
      expected.push_back(y);
    }
  });
  const Tokens tokens = problem.sequences();
  std::vector<double> found(expected.size());
  evaluate(
      kernels, layer_from_heads(kernels, v.data(), q.data(), heads, d_out, d), tokens, positions, d_out, 2,
      [](std::int64_t) {}, found.data());
  check(close(found, expected, 1e-12), "heads", kernels.name, d, problem.count());
}

}  // namespace

void test_samples(const Kernels& kernels, std::mt19937& random) {
  test_forms_of_tokens(kernels, random);
  for (const Positions positions : {Positions::last, Positions::all, Positions::causal}) {
    for (const std::int64_t d : {1, 2, 3, 4, 5, 7, 9}) {
      const Selection selection = some_features(d), few = one_pair(d, positions);
      for (const std::int64_t sequences : {1, 20, 300}) {
        if (d > 5 && sequences > 20) continue;
        const Problem problem(d, sequences, positions, random);
        for (const Selection* chosen : {static_cast<const Selection*>(nullptr), &selection, &few}) {
          test_moments(kernels, problem, positions, Precision::float64, chosen);
          test_moments(kernels, problem, positions, Precision::mixed, chosen);
          test_normal_equations(kernels, problem, positions, random, chosen);
          test_serial_moments(kernels, problem, positions, random, chosen);
        }
        test_layer(kernels, problem, positions, 3, 2, random);
        test_layer(kernels, problem, positions, 5, 1, random);
      }
    }
    // Long enough for S to be formed from vectors of coordinates.
    for (const std::int64_t d : {4, 6, 8, 12, 16, 33}) {
      const Problem problem(d, 19, positions, random, 30, 8);
      for (const std::int64_t d_out : {1, 2, 3}) test_layer(kernels, problem, positions, 4, d_out, random);
      if (d < 9) test_moments(kernels, problem, positions, Precision::float64);
    }
    // More pairs than maps are formed from at a time, and more rows of them than a panel has.
    test_normal_equations(kernels, Problem(17, 20, positions, random), positions, random);
  }
  // Sequences that go on over several blocks.
  const Selection selection = some_features(3), few = one_pair(3, Positions::causal);
  for (const Selection* chosen : {static_cast<const Selection*>(nullptr), &selection, &few}) {
    const Problem problem(3, 4, Positions::causal, random, 3000);
    test_moments(kernels, problem, Positions::causal, Precision::float64, chosen);
    test_normal_equations(kernels, problem, Positions::causal, random, chosen);
    test_serial_moments(kernels, problem, Positions::causal, random, chosen);
  }
}

}  // namespace linattn
