#include "device/sim_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <functional>

#include "ggml.h"

namespace sluice {
namespace {

using Option = std::pair<std::string, std::string>;

struct Row {
  std::string_view name;
  Status (*read)(const Option&, SimOptions&);
};

Result<std::uint64_t> any_count(std::string_view text) { return parse_count(text, 0, ~std::uint64_t{0}); }
Result<std::uint64_t> ordinal(std::string_view text) { return parse_count(text, 1, ~std::uint64_t{0}); }
Result<std::uint64_t> flag(std::string_view text) { return parse_count(text, 0, 1); }
Result<std::uint64_t> thread_count(std::string_view text) { return parse_count(text, 1, GGML_MAX_N_THREADS); }
Result<std::uint64_t> buffer_count(std::string_view text) { return parse_count(text, 1, 1'000'000); }

/// "20ms" is a time, "3" a number of calls.
Status read_late_free(const Option& option, SimOptions& options) {
  if (std::ranges::all_of(option.second, [](unsigned char c) { return std::isdigit(c) != 0; }))
    return read_option(option, options.late_free_calls, ordinal);
  return read_option(option, options.late_free_s, parse_duration);
}

bool is_operator(std::string_view name) {
  for (int op = GGML_OP_NONE + 1; op < GGML_OP_COUNT; ++op)
    if (name == ggml_op_name(static_cast<ggml_op>(op))) return true;
  for (int op = 0; op < GGML_UNARY_OP_COUNT; ++op)
    if (name == ggml_unary_op_name(static_cast<ggml_unary_op>(op))) return true;
  for (int op = 0; op < GGML_GLU_OP_COUNT; ++op)
    if (name == ggml_glu_op_name(static_cast<ggml_glu_op>(op))) return true;
  return false;
}

/// "FLASH_ATTN_EXT+GELU": operators as ggml names them.
Status read_lacks(const Option& option, SimOptions& options) {
  std::string_view rest = option.second;
  while (true) {
    const auto plus = rest.find('+');
    const std::string name(rest.substr(0, plus));
    if (!is_operator(name))
      return fail(Code::invalid_argument,
                  fmt::format("device option '{}': ggml has no operator '{}'; write it like MUL_MAT+GELU", option.first, name));
    options.lacks.insert(name);
    if (plus == std::string_view::npos) return {};
    rest.remove_prefix(plus + 1);
  }
}

constexpr std::array kRows = {
    Row{"memory", [](const Option& o, SimOptions& s) { return read_option(o, s.memory, parse_bytes); }},
    Row{"link", [](const Option& o, SimOptions& s) { return read_option(o, s.link_bytes_per_s.emplace(), parse_link_rate); }},
    Row{"latency", [](const Option& o, SimOptions& s) { return read_option(o, s.link_latency_s, parse_duration); }},
    Row{"compute", [](const Option& o, SimOptions& s) { return read_option(o, s.flops_per_s.emplace(), parse_flops); }},
    Row{"node", [](const Option& o, SimOptions& s) { return read_option(o, s.node_s, parse_duration); }},
    Row{"max-buffer", [](const Option& o, SimOptions& s) { return read_option(o, s.max_buffer, parse_bytes); }},
    Row{"preferred-buffer",
        [](const Option& o, SimOptions& s) { return read_option(o, s.preferred_buffer.emplace(), parse_bytes); }},
    Row{"max-buffers", [](const Option& o, SimOptions& s) { return read_option(o, s.max_buffers, buffer_count); }},
    Row{"fragment", [](const Option& o, SimOptions& s) { return read_option(o, s.fragment.emplace(), parse_bytes); }},
    Row{"max-submit-buffers",
        [](const Option& o, SimOptions& s) { return read_option(o, s.max_submit_buffers, buffer_count); }},
    Row{"late-free", read_late_free},
    Row{"lacks", read_lacks},
    Row{"free", [](const Option& o, SimOptions& s) { return read_option(o, s.free.emplace(), parse_bytes); }},
    Row{"total", [](const Option& o, SimOptions& s) { return read_option(o, s.total.emplace(), parse_bytes); }},
    Row{"pinned", [](const Option& o, SimOptions& s) { return read_option(o, s.pinned, parse_bytes); }},
    Row{"backend", [](const Option& o, SimOptions& s) { return read_option(o, s.backend, parse_bytes); }},
    Row{"fail-alloc", [](const Option& o, SimOptions& s) { return read_option(o, s.fail_alloc, ordinal); }},
    Row{"fail-allocs", [](const Option& o, SimOptions& s) { return read_option(o, s.fail_allocs, ordinal); }},
    Row{"fail-host", [](const Option& o, SimOptions& s) { return read_option(o, s.fail_host, ordinal); }},
    Row{"fail-copy", [](const Option& o, SimOptions& s) { return read_option(o, s.fail_copy, ordinal); }},
    Row{"fail-compute", [](const Option& o, SimOptions& s) { return read_option(o, s.fail_compute, ordinal); }},
    Row{"delay-seed", [](const Option& o, SimOptions& s) { return read_option(o, s.delay_seed.emplace(), any_count); }},
    Row{"delay", [](const Option& o, SimOptions& s) { return read_option(o, s.delay_s, parse_duration); }},
    Row{"poison", [](const Option& o, SimOptions& s) { return read_option(o, s.poison, flag); }},
    Row{"row-split", [](const Option& o, SimOptions& s) { return read_option(o, s.row_split, flag); }},
    Row{"threads", [](const Option& o, SimOptions& s) { return read_option(o, s.threads, thread_count); }},
};

constexpr auto kNames = [] {
  std::array<std::string_view, kRows.size()> names;
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kRows[i].name;
  return names;
}();

}  // namespace

std::span<const std::string_view> sim_option_names() { return kNames; }

Result<SimOptions> parse_sim_options(const DeviceName& name) {
  SimOptions options;
  options.label = name.label;
  for (const auto& option : name.options) {
    const Row* found = nullptr;
    for (const Row& row : kRows)
      if (row.name == option.first) found = &row;
    if (!found)
      return fail(Code::invalid_argument,
                  fmt::format("device 'sim' has no option '{}'; there are {}", option.first, fmt::join(kNames, ", ")));
    SLUICE_TRY(found->read(option, options));
  }
  SLUICE_TRY(options.validate());
  return options;
}

Status SimOptions::validate() const {
  const auto invalid = [](std::string_view option, std::string_view why) {
    return fail(Code::invalid_argument, fmt::format("device option '{}' {}", option, why));
  };
  if (memory == 0) return invalid("memory", "must be more than 0");
  if (max_buffer == 0) return invalid("max-buffer", "must be more than 0");
  if (preferred_buffer && *preferred_buffer == 0) return invalid("preferred-buffer", "must be more than 0");
  if (fragment && *fragment == 0) return invalid("fragment", "must be more than 0");
  if (late_free_s > 1) return invalid("late-free", "must be at most 1s");
  if (backend > memory) return invalid("backend", "must be at most memory");
  if (delay_s > 1) return invalid("delay", "must be at most 1s");
  if (link_latency_s > 0 && !link_bytes_per_s) return invalid("latency", "needs link");
  if (node_s > 0 && !flops_per_s) return invalid("node", "needs compute");
  return {};
}

}  // namespace sluice
