#include <fmt/format.h>

#include "golden/array.h"
#include "golden/network.h"
#include "models/checkpoint.h"
#include "text/emphasis.h"

namespace sluice::golden {
namespace {

/// Rows of ids as lanes see them: at most `positions` ids each, the rows of a batch one after another.
struct Rows {
  std::size_t batch = 0, tokens = 0, per_lane = 0;
  std::size_t lanes() const { return batch * (tokens / per_lane); }
};

Result<Rows> rows_of(const Array& ids, std::int64_t positions) {
  if (ids.shape.size() != 2) return fail(Code::corrupt, "ids are not [batch, tokens]");
  Rows rows{static_cast<std::size_t>(ids.shape[0]), static_cast<std::size_t>(ids.shape[1]), 0};
  rows.per_lane = std::min(rows.tokens, static_cast<std::size_t>(positions));
  if (rows.per_lane == 0 || rows.tokens % rows.per_lane != 0) {
    return fail(Code::unsupported, fmt::format("{} tokens are no whole number of chunks of {}", rows.tokens, positions));
  }
  return rows;
}

/// One output of all lanes, in the order of the batch.
std::vector<float> joined(const std::vector<LaneOutputs>& outputs, std::size_t index) {
  std::vector<float> all;
  for (const auto& lane : outputs) all.insert(all.end(), lane[index].begin(), lane[index].end());
  return all;
}

/// For each row of the batch the state at its first end token, looked for in its first chunk.
std::vector<float> pooled(std::span<const float> states, std::span<const std::int32_t> ids, const Rows& rows,
                          std::int32_t end_token) {
  const std::size_t width = states.size() / ids.size();
  std::vector<float> out;
  for (std::size_t b = 0; b < rows.batch; ++b) {
    const auto first = ids.subspan(b * rows.tokens, rows.per_lane);
    const auto at = states.subspan((b * rows.tokens + clip_pooled_position(first, end_token)) * width, width);
    out.insert(out.end(), at.begin(), at.end());
  }
  return out;
}

Result<std::vector<float>> weighted(std::vector<float> states, const TensorFile& io, Emphasis mode) {
  SLUICE_ASSIGN(const auto weights, read_array(io, "token_weights"));
  SLUICE_TRY(apply_emphasis(states, weights.values, mode));
  return states;
}

}  // namespace

Result<std::vector<Measured>> run_clip_text(const Case& one, const Setup& setup) {
  const auto& encoders = one.meta.at("params").at("encoders");
  if (encoders.size() != 1) return fail(Code::unsupported, "more than one encoder");
  const auto& encoder = encoders[0];
  SLUICE_ASSIGN(const auto io, one.io());
  SLUICE_ASSIGN(const auto file, open_tensor_file(one.path(encoder.at("file")), *system_files()));
  const bool projects = encoder.value("has_proj", false);
  SLUICE_ASSIGN(
      const auto part,
      load_clip_text(file, {.last_hidden = true, .skipped = true, .skipped_ln = true, .projected = projects, .skip = 1}));
  const std::string ids_name = encoder.at("ids");
  SLUICE_ASSIGN(const auto ids_array, read_array(*io, ids_name));
  SLUICE_ASSIGN(const auto ids, read_ids(*io, ids_name));
  SLUICE_ASSIGN(const auto rows, rows_of(ids_array, part.config.positions));

  std::vector<LaneInputs> lanes;
  for (std::size_t l = 0; l < rows.lanes(); ++l) {
    std::vector<float> embedded(static_cast<std::size_t>(part.tokens.width) * rows.per_lane);
    SLUICE_TRY(WeightStore::gather_rows({part.tokens.origin.file, part.tokens.origin.tensor},
                                        std::span(ids).subspan(l * rows.per_lane, rows.per_lane), embedded));
    lanes.push_back({std::move(embedded)});
  }
  const Shape shape{part.config.hidden, static_cast<std::int64_t>(rows.per_lane), 1, 1};
  SLUICE_ASSIGN(const auto outputs, run_network(setup, "text encoder", part.component, {shape}, lanes));

  const Model& model = *part.component.model;
  const auto states = [&](Value value) { return joined(outputs, output_index(model, value)); };
  const auto last = states(*part.values.last_hidden);
  const auto allowed = tolerance(Work::network, one.weight_dtype(), setup.backend());
  const std::string prefix = encoder.value("out_prefix", std::string{});
  const auto end_token = encoder.at("eos").get<std::int32_t>();
  std::vector<Measured> out;
  const auto add = [&](const std::string& name, const std::vector<float>& got) {
    out.push_back(measure(*io, prefix + name, got, allowed));
  };
  add("last_hidden", last);
  add("penultimate", states(*part.values.skipped));
  add("penultimate_ln", states(*part.values.skipped_ln));
  add("pooled", pooled(last, ids, rows, end_token));
  if (projects) add("pooled_projected", pooled(states(*part.values.projected), ids, rows, end_token));
  if (io->find("token_weights")) {
    SLUICE_ASSIGN(const auto plain, weighted(last, *io, Emphasis::none));
    add("last_hidden_weighted", plain);
    SLUICE_ASSIGN(const auto restored, weighted(last, *io, Emphasis::mean));
    add("last_hidden_weighted_mean_restored", restored);
  }
  return out;
}

}  // namespace sluice::golden
