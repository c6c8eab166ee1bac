#include <fmt/format.h>

#include <fstream>

#include "golden/runner.h"
#include "text/chunks.h"
#include "text/clip_tokenizer.h"

namespace sluice::golden {
namespace {

using Ids = std::vector<std::int32_t>;

/// Empty if `line` is met, else what differs.
std::string check_line(const nlohmann::json& line) {
  const auto text = line.at("text").get<std::string>();
  const auto ids = ClipTokenizer::standard().encode(text);
  const bool plain = ids == line.at("ids").get<Ids>();
  if (!plain && !(line.contains("ids_without_nfc") && ids == line.at("ids_without_nfc").get<Ids>())) return "ids";
  // The padded rows belong to the first kind of ids.
  if (!plain) return {};
  const auto chunks = chunk_tokens(ids, std::vector<float>(ids.size(), 1.0f));
  const auto row = [&chunks](std::size_t i) { return Ids(chunks.ids[i].begin(), chunks.ids[i].end()); };
  if (row(0) != line.at("padded_77").get<Ids>()) return "padded_77";
  const auto& parts = line.at("chunks_of_75");
  if (parts.is_null()) return chunks.count() == 1 ? "" : "number of chunks";
  if (parts.size() != chunks.count()) return "number of chunks";
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (row(i) != parts[i].get<Ids>()) return fmt::format("chunk {}", i);
  }
  return {};
}

}  // namespace

Result<std::vector<Measured>> run_clip_tokenizer(const Case& one, const Setup&) {
  const auto path = one.path("prompts.jsonl");
  std::ifstream file(path);
  if (!file) return fail(Code::not_found, fmt::format("{}: cannot be opened", path));
  std::size_t prompts = 0, failed = 0;
  std::string first, text;
  while (std::getline(file, text)) {
    if (text.empty()) continue;
    ++prompts;
    const auto difference = check_line(nlohmann::json::parse(text));
    if (!difference.empty() && failed++ == 0) first = fmt::format("line {}: {}", prompts, difference);
  }
  Measured result{"prompts", {}, tolerance(Work::loading, "f32", "host"), {}, fmt::format("{} prompts", prompts)};
  if (failed != 0) result.problem = fmt::format("{} of {} prompts differ, first {}", failed, prompts, first);
  if (prompts == 0) result.problem = "no prompts";
  return std::vector<Measured>{std::move(result)};
}

}  // namespace sluice::golden
