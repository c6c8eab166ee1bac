#include "models/clip_text.h"

#include "doctest/doctest.h"
#include "models/checkpoint.h"
#include "models/oracle.h"

namespace sluice::testing {
namespace {

constexpr ClipTextOutputs kAll{.last_hidden = true, .skipped = true, .skipped_ln = true, .projected = false, .skip = 1};

/// Rows of the token table, widened.
HostTensor embed(const TokenTable& table, std::span<const std::int32_t> ids) {
  const TensorInfo& info = table.origin.info();
  std::vector<std::byte> raw(info.size);
  REQUIRE(read_tensor(*table.origin.file, info, raw));
  std::vector<float> all(static_cast<std::size_t>(info.elements()));
  REQUIRE(convert(info, raw, info.elements(), GGML_TYPE_F32, std::as_writable_bytes(std::span(all))));
  HostTensor out{{table.width, static_cast<std::int64_t>(ids.size())}, {}};
  for (const std::int32_t id : ids)
    out.data.insert(out.data.end(), all.begin() + id * table.width, all.begin() + (id + 1) * table.width);
  return out;
}

using Results = std::map<std::string, std::vector<float>>;

/// Every row of ids in chunks of at most 77, results joined as the oracle joins them.
Results encode(const TextEncoderPart& text, const BlockRunner& runner, std::span<const std::int32_t> ids,
               std::size_t row_length, std::int32_t end) {
  Results results;
  const auto add = [&](const char* name, std::span<const float> data) {
    results[name].insert(results[name].end(), data.begin(), data.end());
  };
  const std::size_t chunk_length = std::min<std::size_t>(row_length, 77);
  for (std::size_t at = 0; at < ids.size(); at += chunk_length) {
    const auto chunk = ids.subspan(at, chunk_length);
    const auto state = runner.run(text.component, {{text.values.embedded.id, embed(text.tokens, chunk)}});
    const auto& last = state.at(text.values.last_hidden->id).data;
    add("last_hidden", last);
    add("penultimate", state.at(text.values.skipped->id).data);
    add("penultimate_ln", state.at(text.values.skipped_ln->id).data);
    if (at % row_length != 0) continue;  // pooled comes from a row's first chunk
    const std::size_t position = clip_pooled_position(chunk, end);
    const auto pick = [&](const std::vector<float>& states, std::int64_t width) {
      const auto size = static_cast<std::size_t>(width);
      return std::span<const float>(states).subspan(position * size, size);
    };
    add("pooled", pick(last, text.config.hidden));
    if (text.values.projected) add("pooled_projected", pick(state.at(text.values.projected->id).data, text.config.projection));
  }
  return results;
}

void check_case(const std::string& name, const std::string& weights, bool projected, Bound bound, WeightTypes types) {
  CAPTURE(name);
  ClipTextOutputs outputs = kAll;
  outputs.projected = projected;
  const auto text = load_clip_text(open(golden("clip_text/" + weights)), outputs);
  REQUIRE_MESSAGE(text, (text ? "" : text.error().message));
  const auto io = open(golden("clip_text/" + name + "/io.safetensors"));
  const auto ids = values<std::int32_t>(*io, "input_ids");
  const auto row_length = static_cast<std::size_t>(io->find("input_ids")->shape[0]);
  const auto results = encode(*text, BlockRunner(types), ids, row_length, 599);
  CHECK(results.size() == (projected ? 5 : 4));
  for (const auto& [output, got] : results) check_close(output, got, values(*io, output), bound);
}

}  // namespace

TEST_CASE("clip_text: the oracle's encoders") {
  SUBCASE("HF names, f32, with projection") {
    check_case("clip_l_hf", "clip_l_hf/weights.safetensors", true, kF32, WeightTypes::device);
  }
  SUBCASE("no end token in view") {
    check_case("clip_l_hf_short", "clip_l_hf/weights.safetensors", true, kF32, WeightTypes::device);
  }
  SUBCASE("LDM names, widened") {
    check_case("clip_l_ldm_f16", "clip_l_ldm_f16/weights.safetensors", false, kF32, WeightTypes::f32);
  }
  SUBCASE("LDM names, f16") {
    check_case("clip_l_ldm_f16", "clip_l_ldm_f16/weights.safetensors", false, kF16, WeightTypes::device);
  }
  SUBCASE("two chunks, widened") {
    check_case("clip_l_ldm_long_weighted", "clip_l_ldm_f16/weights.safetensors", false, kF32, WeightTypes::f32);
  }
  SUBCASE("two chunks, f16") {
    check_case("clip_l_ldm_long_weighted", "clip_l_ldm_f16/weights.safetensors", false, kF16, WeightTypes::device);
  }
}

TEST_CASE("clip_text: the demo model's text states") {
  const auto text = load_clip_text(open(std::string(SLUICE_SOURCE_DIR) + "/models/emoji-sd.safetensors"), {});
  REQUIRE_MESSAGE(text, (text ? "" : text.error().message));
  const auto reference = open(golden("demo/reference.safetensors"));
  for (const auto& [types, bound] : {std::pair{WeightTypes::f32, kF32}, std::pair{WeightTypes::device, kF16}}) {
    const BlockRunner runner(types);
    for (const std::string name : {"0", "3", "uncond"}) {
      const auto ids = values<std::int32_t>(*reference, name + ".token_ids");
      const auto state = runner.run(text->component, {{text->values.embedded.id, embed(text->tokens, ids)}});
      check_close(name, state.at(text->values.last_hidden->id).data, values(*reference, name + ".context"), bound);
    }
  }
}

TEST_CASE("clip_text: clip skip leaves layers out of the list, and gives what they were given") {
  const auto file = open(golden("clip_text/clip_l_ldm_f16/weights.safetensors"));
  const auto all = load_clip_text(file, kAll);
  const auto skip = load_clip_text(file, {.last_hidden = false, .skipped_ln = true, .skip = 1});
  REQUIRE(all);
  REQUIRE(skip);
  CHECK(skip->component.model->blocks.size() == all->component.model->blocks.size() - 2);
  const std::vector<std::int32_t> ids(77, 7);
  const BlockRunner runner(WeightTypes::device);
  const auto input = embed(all->tokens, ids);
  CHECK(runner.run(skip->component, {{skip->values.embedded.id, input}}).at(skip->values.skipped_ln->id).data ==
        runner.run(all->component, {{all->values.embedded.id, input}}).at(all->values.skipped_ln->id).data);
  CHECK(load_clip_text(file, {.last_hidden = false, .skipped_ln = true, .skip = 2}).error().code == Code::invalid_argument);
  CHECK(load_clip_text(file, {.projected = true}).error().code == Code::invalid_argument);
}

TEST_CASE("clip_text: a prefix of the tokens gives a prefix of the states") {
  const auto text = load_clip_text(open(golden("clip_text/clip_l_hf/weights.safetensors")), {});
  REQUIRE(text);
  std::vector<std::int32_t> ids(77);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * 7 % 600);
  const BlockRunner runner(WeightTypes::device);
  const auto run = [&](std::size_t count) {
    const auto input = embed(text->tokens, std::span(ids).first(count));
    return runner.run(text->component, {{text->values.embedded.id, input}}).at(text->values.last_hidden->id).data;
  };
  const auto whole = run(77), part = run(20);
  check_close("20 of 77", part, std::span(whole).first(part.size()), {1e-5, 1e-4});
}

TEST_CASE("clip_pooled_position: the first end token, else 0") {
  const std::int32_t ids[] = {5, 9, 4, 9};
  CHECK(clip_pooled_position(ids, 9) == 1);
  CHECK(clip_pooled_position(ids, 8) == 0);
  CHECK(clip_pooled_position({}, 8) == 0);
}

}  // namespace sluice::testing
