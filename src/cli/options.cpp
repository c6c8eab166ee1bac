#include "cli/options.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>

namespace sluice::cli {
namespace {

template <typename Integer>
Result<Integer> parse_integer(const std::string& name, const std::string& text, Integer least, Integer most) {
  Integer value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end || value < least || value > most) {
    return fail(Code::invalid_argument, fmt::format("--{} {}: give a whole number from {} to {}", name, text, least, most));
  }
  return value;
}

Result<float> parse_real(const std::string& name, const std::string& text, double least, double most) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end || !std::isfinite(value) || value < least || value > most) {
    return fail(Code::invalid_argument, fmt::format("--{} {}: give a number from {} to {}", name, text, least, most));
  }
  return static_cast<float>(value);
}

using Set = std::function<Status(Settings&, const std::string&)>;

Set text_into(std::string Request::* field) {
  return [field](Settings& s, const std::string& text) -> Status {
    s.request.*field = text;
    return {};
  };
}

Set integer_into(int Request::* field, const char* name, int least, int most) {
  return [=](Settings& s, const std::string& text) -> Status {
    SLUICE_ASSIGN(s.request.*field, parse_integer<int>(name, text, least, most));
    return {};
  };
}

Set flag_into(bool Settings::* field) {
  return [field](Settings& s, const std::string&) -> Status {
    s.*field = true;
    return {};
  };
}

/// "a=1,b=2" → calls `take` with each pair.
Status for_each_pair(const char* option, const std::string& text,
                     const std::function<Status(const std::string& name, const std::string& value)>& take) {
  for (std::string_view rest = text;;) {
    const auto comma = rest.find(',');
    const std::string_view part = rest.substr(0, comma);
    const auto equals = part.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == part.size())
      return fail(Code::invalid_argument, fmt::format("--{} {}: write it like name=value,name=value", option, text));
    if (auto taken = take(std::string(part.substr(0, equals)), std::string(part.substr(equals + 1))); !taken)
      return fail_while(fmt::format("--{} {}", option, text), std::move(taken).error());
    if (comma == std::string_view::npos) return {};
    rest.remove_prefix(comma + 1);
  }
}

Status set_place(Settings& s, const std::string& text) {
  return for_each_pair("place", text, [&](const std::string& component, const std::string& device) -> Status {
    if (!s.engine.place.emplace(component, device).second)
      return fail(Code::invalid_argument, fmt::format("{} is placed twice", component));
    return {};
  });
}

Status set_device_budget(Settings& s, const std::string& text) {
  if (text.find('=') != std::string::npos)
    return for_each_pair("device-budget", text, [&](const std::string& device, const std::string& size) -> Status {
      SLUICE_ASSIGN(const Budget budget, Budget::parse(size));
      if (!s.engine.device_budgets.emplace(device, budget).second)
        return fail(Code::invalid_argument, fmt::format("{} is given twice", device));
      return {};
    });
  auto budget = Budget::parse(text);
  if (!budget) return fail_while(fmt::format("--device-budget {}", text), budget.error());
  s.engine.device_budget = *budget;
  return {};
}

Status set_tier(Settings& s, const std::string& text) {
  if (text == "auto")
    s.engine.tier = Tier::automatic;
  else if (text == "mapped")
    s.engine.tier = Tier::mapped;
  else if (text == "read")
    s.engine.tier = Tier::read;
  else if (text == "disk")
    s.engine.tier = Tier::disk;
  else
    return fail(Code::invalid_argument, fmt::format("--tier {}: give auto, mapped, read or disk", text));
  return {};
}

Status set_load(Settings& s, const std::string& text) {
  if (text == "auto")
    s.engine.load = Load::automatic;
  else if (text == "eager")
    s.engine.load = Load::eager;
  else if (text == "lazy")
    s.engine.load = Load::lazy;
  else
    return fail(Code::invalid_argument, fmt::format("--load {}: give auto, eager or lazy", text));
  return {};
}

/// A size that names itself in the error, as budgets and reserves need it.
Result<Bytes> parse_size(const char* name, const std::string& text) {
  auto bytes = parse_bytes(text);
  if (!bytes) return fail_while(fmt::format("--{} {}", name, text), bytes.error());
  return bytes;
}

std::vector<Option> make_options() {
  std::vector<Option> table;
  std::string group;
  const auto add = [&](std::string name, char letter, std::string type, std::string unit, std::string fallback,
                       std::string help, Set set) {
    table.push_back({std::move(name), letter, std::move(type), std::move(unit), std::move(fallback), std::move(help), group,
                     std::move(set)});
  };
  const Request request;
  const EngineOptions engine;

  group = "The picture";
  add("model", 'm', "path", "", "", "checkpoint to run: safetensors or GGUF; its weights are not all loaded at once",
      [](Settings& s, const std::string& text) -> Status {
        s.engine.model = text;
        return {};
      });
  add("vae", 0, "path", "", "the model's", "file whose autoencoder takes the place of the checkpoint's",
      [](Settings& s, const std::string& text) -> Status {
        s.engine.vae = text;
        return {};
      });
  add("clip-l", 0, "path", "", "the model's", "file whose text encoder takes the place of the checkpoint's",
      [](Settings& s, const std::string& text) -> Status {
        s.engine.clip_l = text;
        return {};
      });
  add("prompt", 'p', "text", "", "", "what to draw; (x:1.2), (x) and [x] weigh words, a backslash takes a bracket literally",
      [](Settings& s, const std::string& text) -> Status {
        s.request.prompt = text;
        s.prompt_given = true;
        return {};
      });
  add("negative-prompt", 'n', "text", "", "", "what to keep away from; evaluated unless the guidance scale is 1",
      text_into(&Request::negative_prompt));
  add("width", 'W', "count", "pixels", "the model's", "a multiple of what the model needs; memory and time grow with the area",
      integer_into(&Request::width, "width", 1, 1 << 16));
  add("height", 'H', "count", "pixels", "the model's", "as --width", integer_into(&Request::height, "height", 1, 1 << 16));
  add("steps", 0, "count", "steps", fmt::format("{}", request.steps),
      "sampling steps; time grows in proportion, memory does not", integer_into(&Request::steps, "steps", 1, 10000));
  add("cfg-scale", 0, "number", "", fmt::format("{}", request.cfg_scale),
      "guidance scale; 1 leaves the negative prompt out, which halves the compute of a step",
      [](Settings& s, const std::string& text) -> Status {
        SLUICE_ASSIGN(s.request.cfg_scale, parse_real("cfg-scale", text, 0, 1000));
        return {};
      });
  add("sampler", 0, "name", "", request.sampler, "euler, euler_a, ddim or dpmpp_2m", text_into(&Request::sampler));
  add("schedule", 0, "name", "", request.schedule, "noise levels: discrete, leading (diffusers' default for SD 1.x) or karras",
      text_into(&Request::schedule));
  add("rng", 0, "name", "", request.rng,
      "random stream: cuda (as on NVIDIA cards, whatever the device) or cpu (torch's CPU generator)", text_into(&Request::rng));
  add("seed", 's', "number", "", "random", "start of the random stream; -1 chooses one and reports it",
      [](Settings& s, const std::string& text) -> Status {
        SLUICE_ASSIGN(s.request.seed, parse_integer<std::int64_t>("seed", text, -1, std::numeric_limits<std::int64_t>::max()));
        return {};
      });
  add("batch", 'b', "count", "pictures", fmt::format("{}", request.batch),
      "pictures at once; number i is the picture of seed + i; weights are copied once for all of them",
      integer_into(&Request::batch, "batch", 1, 1024));
  add("clip-skip", 0, "count", "layers", fmt::format("{}", request.clip_skip),
      "text encoder layer to stop at, counted from the end; 1: the last",
      integer_into(&Request::clip_skip, "clip-skip", 1, 1000));
  add("emphasis", 0, "name", "", request.emphasis,
      "how word weights act: mean (the mean is restored afterwards) or none (weights alone)", text_into(&Request::emphasis));
  add("output", 'o', "path", "", "sluice-<seed>.png",
      "PNG to write, replacing one of that name; with --batch each name gets -0001, -0002, …",
      [](Settings& s, const std::string& text) -> Status {
        s.output = text;
        return {};
      });

  group = "Where it runs";
  add("device", 'd', "name", "", engine.device,
      "auto (a card before the CPU), cpu, cpu:threads=2, a name from `sluice devices`, or sim:… (docs/simulated-device.md); "
      "several, as vulkan0,cpu, share the blocks in this order",
      [](Settings& s, const std::string& text) -> Status {
        s.engine.device = text;
        return {};
      });
  add("threads", 't', "count", "threads", "the machine's",
      "compute threads of the CPU device; another number may change last bits",
      [](Settings& s, const std::string& text) -> Status {
        SLUICE_ASSIGN(s.engine.threads, parse_integer<int>("threads", text, 1, 1024));
        return {};
      });
  add("place", 0, "name=name", "", "all devices",
      "where a component runs, as text=cpu,denoiser=vulkan0,vae=vulkan0; several devices joined by + share its blocks",
      set_place);
  add("split", 0, "name", "", engine.split,
      "how several devices share a model: blocks (each runs some), or rows (the first runs all, rows of large weights lie on "
      "the others too; CUDA and its kin)",
      [](Settings& s, const std::string& text) -> Status {
        s.engine.split = text;
        return {};
      });
  add("device-budget", 0, "size", "bytes", "what is free",
      "most device memory to use, as 6GiB; -1GiB leaves one free; with several devices vulkan0=6GiB,cpu=8GiB; less memory "
      "means "
      "more copying, never another picture",
      set_device_budget);
  add("host-budget", 0, "size", "bytes", "unlimited", "most host memory for kept weights and staging, as 8GiB",
      [](Settings& s, const std::string& text) -> Status {
        SLUICE_ASSIGN(s.engine.host_budget, parse_size("host-budget", text));
        return {};
      });
  add("pinned-budget", 0, "size", "bytes", "half of memory",
      "how much of the host memory may be pinned, which copies faster and cannot be paged out",
      [](Settings& s, const std::string& text) -> Status {
        SLUICE_ASSIGN(s.engine.pinned_budget, parse_size("pinned-budget", text));
        return {};
      });
  add("reserve", 0, "size", "bytes", format_bytes(engine.reserve),
      "left free on the device when no --device-budget is given, at most an eighth of it",
      [](Settings& s, const std::string& text) -> Status {
        SLUICE_ASSIGN(s.engine.reserve, parse_size("reserve", text));
        return {};
      });
  add("idle-unload", 0, "number", "seconds", "never",
      "programs that stay open give the device back after this time without a request, host memory after as long again",
      [](Settings& s, const std::string& text) -> Status {
        SLUICE_ASSIGN(s.engine.idle_unload_s, parse_real("idle-unload", text, 0.001, 1e9));
        return {};
      });
  add("tier", 0, "name", "", "auto",
      "where weights wait: mapped (in the file's mapping), read (read once, kept in host memory), disk (read at each use); "
      "auto is mapped",
      set_tier);
  add("load", 0, "name", "", "auto",
      "when host memory is filled: eager (when the model is opened: first picture sooner, start later) or lazy (at first use); "
      "auto is lazy",
      set_load);
  add("no-prefetch", 0, "flag", "", "off", "copy a block only when the one before is done: least memory, slowest",
      [](Settings& s, const std::string&) -> Status {
        s.engine.prefetch = false;
        return {};
      });
  add("policy", 0, "name", "", engine.policy,
      "which blocks stay on the device: interleaved, or for comparison first-k, all-streamed, all-resident",
      [](Settings& s, const std::string& text) -> Status {
        s.engine.policy = text;
        return {};
      });

  group = "What is printed";
  add("json", 0, "flag", "", "off", "one JSON object on standard output, errors included", flag_into(&Settings::json));
  add("quiet", 'q', "flag", "", "off", "errors only", flag_into(&Settings::quiet));
  add("verbose", 'v', "flag", "", "off", "every block of the plan, and the log", flag_into(&Settings::verbose));
  return table;
}

}  // namespace

const std::vector<Option>& options() {
  static const std::vector<Option> table = make_options();
  return table;
}

std::string options_markdown() {
  std::string out =
      "# Options of `sluice generate` and `sluice plan`\n\n"
      "Made from the program's own table by `sluice options --markdown`; a test compares the two.\n"
      "Sizes are written `6GiB`, `512MiB`, `200MB` or as a number of bytes. A size that starts with a minus sign leaves that "
      "much free.\n";
  std::string group;
  for (const auto& option : options()) {
    if (option.group != group) {
      group = option.group;
      out += fmt::format("\n## {}\n\n| option | type | unit | default | meaning |\n|---|---|---|---|---|\n", group);
    }
    const auto letter = option.letter ? fmt::format("`-{}`, ", option.letter) : std::string{};
    out += fmt::format("| {}`--{}` | {} | {} | {} | {} |\n", letter, option.name, option.type, option.unit, option.fallback,
                       option.help);
  }
  return out;
}

}  // namespace sluice::cli
